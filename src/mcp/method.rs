//! Method names. A closed set by the specification, with a door for all others: they pass unchanged.

/// A method that the gateway treats by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "each variant is the method of that name in `Method::as_str`")]
pub enum Method {
    Initialize,
    Initialized,
    Ping,
    Cancelled,
    Progress,
    Message,
    ToolsList,
    ToolsCall,
    ToolsListChanged,
    ResourcesList,
    ResourceTemplatesList,
    ResourcesRead,
    ResourcesSubscribe,
    ResourcesUnsubscribe,
    PromptsList,
    PromptsGet,
    Complete,
    SetLevel,
    ElicitationCreate,
    ElicitationComplete,
    SamplingCreateMessage,
    RootsList,
    RootsListChanged,
    TasksGet,
    TasksResult,
    TasksList,
    TasksCancel,
    TasksStatus,
    TasksUpdate,
    TasksNotification,
    Discover,
    Listen,
    Acknowledged,
    /// Any other name, also those of later revisions.
    Other,
}

impl Method {
    /// Every method with a name, and `Other`.
    pub const ALL: [Self; 34] = [
        Self::Initialize,
        Self::Initialized,
        Self::Ping,
        Self::Cancelled,
        Self::Progress,
        Self::Message,
        Self::ToolsList,
        Self::ToolsCall,
        Self::ToolsListChanged,
        Self::ResourcesList,
        Self::ResourceTemplatesList,
        Self::ResourcesRead,
        Self::ResourcesSubscribe,
        Self::ResourcesUnsubscribe,
        Self::PromptsList,
        Self::PromptsGet,
        Self::Complete,
        Self::SetLevel,
        Self::ElicitationCreate,
        Self::ElicitationComplete,
        Self::SamplingCreateMessage,
        Self::RootsList,
        Self::RootsListChanged,
        Self::TasksGet,
        Self::TasksResult,
        Self::TasksList,
        Self::TasksCancel,
        Self::TasksStatus,
        Self::TasksUpdate,
        Self::TasksNotification,
        Self::Discover,
        Self::Listen,
        Self::Acknowledged,
        Self::Other,
    ];

    /// The method of that name.
    #[must_use]
    pub fn parse(name: &str) -> Self {
        match name {
            "initialize" => Self::Initialize,
            "notifications/initialized" => Self::Initialized,
            "ping" => Self::Ping,
            "notifications/cancelled" => Self::Cancelled,
            "notifications/progress" => Self::Progress,
            "notifications/message" => Self::Message,
            "tools/list" => Self::ToolsList,
            "tools/call" => Self::ToolsCall,
            "notifications/tools/list_changed" => Self::ToolsListChanged,
            "resources/list" => Self::ResourcesList,
            "resources/templates/list" => Self::ResourceTemplatesList,
            "resources/read" => Self::ResourcesRead,
            "resources/subscribe" => Self::ResourcesSubscribe,
            "resources/unsubscribe" => Self::ResourcesUnsubscribe,
            "prompts/list" => Self::PromptsList,
            "prompts/get" => Self::PromptsGet,
            "completion/complete" => Self::Complete,
            "logging/setLevel" => Self::SetLevel,
            "elicitation/create" => Self::ElicitationCreate,
            "notifications/elicitation/complete" => Self::ElicitationComplete,
            "sampling/createMessage" => Self::SamplingCreateMessage,
            "roots/list" => Self::RootsList,
            "notifications/roots/list_changed" => Self::RootsListChanged,
            "tasks/get" => Self::TasksGet,
            "tasks/result" => Self::TasksResult,
            "tasks/list" => Self::TasksList,
            "tasks/cancel" => Self::TasksCancel,
            "notifications/tasks/status" => Self::TasksStatus,
            "tasks/update" => Self::TasksUpdate,
            "notifications/tasks" => Self::TasksNotification,
            "server/discover" => Self::Discover,
            "subscriptions/listen" => Self::Listen,
            "notifications/subscriptions/acknowledged" => Self::Acknowledged,
            _ => Self::Other,
        }
    }

    /// The name on the wire; `other` for [`Method::Other`], which is also its metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Initialized => "notifications/initialized",
            Self::Ping => "ping",
            Self::Cancelled => "notifications/cancelled",
            Self::Progress => "notifications/progress",
            Self::Message => "notifications/message",
            Self::ToolsList => "tools/list",
            Self::ToolsCall => "tools/call",
            Self::ToolsListChanged => "notifications/tools/list_changed",
            Self::ResourcesList => "resources/list",
            Self::ResourceTemplatesList => "resources/templates/list",
            Self::ResourcesRead => "resources/read",
            Self::ResourcesSubscribe => "resources/subscribe",
            Self::ResourcesUnsubscribe => "resources/unsubscribe",
            Self::PromptsList => "prompts/list",
            Self::PromptsGet => "prompts/get",
            Self::Complete => "completion/complete",
            Self::SetLevel => "logging/setLevel",
            Self::ElicitationCreate => "elicitation/create",
            Self::ElicitationComplete => "notifications/elicitation/complete",
            Self::SamplingCreateMessage => "sampling/createMessage",
            Self::RootsList => "roots/list",
            Self::RootsListChanged => "notifications/roots/list_changed",
            Self::TasksGet => "tasks/get",
            Self::TasksResult => "tasks/result",
            Self::TasksList => "tasks/list",
            Self::TasksCancel => "tasks/cancel",
            Self::TasksStatus => "notifications/tasks/status",
            Self::TasksUpdate => "tasks/update",
            Self::TasksNotification => "notifications/tasks",
            Self::Discover => "server/discover",
            Self::Listen => "subscriptions/listen",
            Self::Acknowledged => "notifications/subscriptions/acknowledged",
            Self::Other => "other",
        }
    }

    /// Whether the protocol knows it as a request, so that without an id it is no message of the protocol's
    /// (2025-11-25 basic, "Notifications").
    #[must_use]
    pub fn is_request(self) -> bool {
        self != Self::Other && !self.as_str().starts_with("notifications/")
    }

    /// Whether the modern era has dropped it: stateless servers answer that there is no such method (2026-07-28
    /// changelog, "Removed"; tasks extension, "Removed methods").
    #[must_use]
    pub const fn is_removed(self) -> bool {
        matches!(
            self,
            Self::Initialize
                | Self::Ping
                | Self::SetLevel
                | Self::ResourcesSubscribe
                | Self::ResourcesUnsubscribe
                | Self::TasksList
                | Self::TasksResult
        )
    }

    /// The parameter that `Mcp-Name` repeats (2026-07-28 transports, "Request headers"; tasks extension, "HTTP headers").
    #[must_use]
    pub const fn named_by(self) -> Option<&'static str> {
        match self {
            Self::ToolsCall | Self::PromptsGet => Some("name"),
            Self::ResourcesRead => Some("uri"),
            Self::TasksGet | Self::TasksUpdate | Self::TasksCancel => Some("taskId"),
            _ => None,
        }
    }

    /// Whether the answer may be a question, to be answered by asking again (2026-07-28 MRTR).
    #[must_use]
    pub const fn may_ask(self) -> bool {
        matches!(self, Self::ToolsCall | Self::PromptsGet | Self::ResourcesRead)
    }

    /// Whether this reads tasks again and again: such calls have a rate of their own.
    #[must_use]
    pub const fn is_poll(self) -> bool {
        matches!(self, Self::TasksGet | Self::TasksResult | Self::TasksList)
    }

    /// Whether asking twice is as good as asking once, so that a request whose answer was lost can be sent again.
    #[must_use]
    pub const fn only_reads(self) -> bool {
        self.is_poll()
            || matches!(
                self,
                Self::Ping | Self::ToolsList | Self::PromptsList | Self::ResourcesList | Self::ResourceTemplatesList
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_from_notifications() {
        assert!(Method::ToolsCall.is_request() && Method::Initialize.is_request() && Method::TasksCancel.is_request());
        assert!(!Method::Cancelled.is_request() && !Method::TasksStatus.is_request() && !Method::Other.is_request());
    }

    #[test]
    fn every_method_is_read_as_it_is_written() {
        for (index, method) in Method::ALL.into_iter().enumerate() {
            assert_eq!(Method::parse(method.as_str()), method);
            assert_eq!(method as usize, index);
        }
        assert_eq!(Method::parse("vendor/thing"), Method::Other);
    }
}
