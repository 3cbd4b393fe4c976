//! What is remembered of a server's eras, and for how long. Decides nothing by itself but what has become too old.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::jsonrpc::Object;

/// How long a server counts as one that needs the handshake. One that was upgraded still answers `initialize`, so that
/// nothing fails meanwhile; its modern clients are translated for so long.
const LEGACY: Duration = Duration::from_secs(60 * 60);
/// How long a server counts as one that refuses the handshake.
const NO_HANDSHAKE: Duration = Duration::from_secs(10 * 60);
/// How long a server counts as one that shares no version with the gateway.
const DISJOINT: Duration = Duration::from_secs(60);
/// How long doubts are kept quiet after one that had no ground.
const QUIET: Duration = Duration::from_secs(30);
/// The longest that an answer of `server/discover` is used, whatever its `ttlMs` says.
const FRESH: Duration = Duration::from_secs(60 * 60);
/// The shortest: whoever asked because of one handshake need not ask again in the course of it.
const SETTLING: Duration = Duration::from_secs(1);

/// What the configuration says of a server's era.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Setting {
    /// It is to be found out.
    #[default]
    Auto,
    /// Handshakes and sessions.
    Legacy,
    /// Stateless.
    Modern,
}

/// What a modern server says of itself.
#[derive(Debug)]
pub struct Discovered {
    /// The `result` of `server/discover` as JSON text; `None` where it refuses to say.
    pub result: Option<Box<str>>,
    until: Instant,
    /// Nobody but the one who asked may be told (`cacheScope`).
    is_private: bool,
}

impl Discovered {
    /// An answer that came now.
    pub(super) fn new(result: Option<Box<str>>, now: Instant) -> Self {
        // 2026-07-28 caching: without a hint it is stale at once.
        let read = result.as_deref().and_then(|result| Object::parse(result).ok());
        let millis = read.as_ref().and_then(|read| read.get("ttlMs")?.parse().ok());
        let is_private = read.as_ref().is_some_and(|read| read.get("cacheScope") == Some("\"private\""));
        let ttl = Duration::from_millis(millis.unwrap_or(0)).clamp(SETTLING, FRESH);
        Self { result, until: now + ttl, is_private }
    }
}

/// How a modern request goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Advice {
    Modern,
    Legacy,
    /// The verdict is old.
    LegacyForNow,
    /// Not at all.
    Disjoint,
    Ask,
}

#[derive(Debug)]
enum Modern {
    Unknown,
    Spoken(Arc<Discovered>),
    NotSpoken { since: Instant },
    Disjoint { since: Instant },
}

/// One verdict for each era.
#[derive(Debug)]
pub(super) struct Verdicts {
    setting: Setting,
    modern: Modern,
    handshake_refused: Option<Instant>,
    /// The newest handshake was answered with a session.
    handshake_taken: bool,
    doubted: Option<Instant>,
}

/// Whether any client can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Served,
    /// Nobody can: the server shares no version with the gateway, and takes no handshake either.
    CutOff,
    /// The same, by a verdict that is old.
    CutOffBefore,
}

impl Verdicts {
    pub(super) fn new(setting: Setting) -> Self {
        Self { setting, modern: Modern::Unknown, handshake_refused: None, handshake_taken: false, doubted: None }
    }

    /// How a modern client's request goes on.
    pub(super) fn for_modern(&self, now: Instant) -> Advice {
        match (self.setting, &self.modern) {
            (Setting::Legacy, _) => Advice::Legacy,
            (Setting::Modern, _) | (Setting::Auto, Modern::Spoken(_)) => Advice::Modern,
            (Setting::Auto, Modern::NotSpoken { since }) if now < *since + LEGACY || self.is_quiet(now) => {
                Advice::Legacy
            }
            (Setting::Auto, Modern::NotSpoken { .. }) => Advice::LegacyForNow,
            (Setting::Auto, Modern::Disjoint { since }) if now < *since + DISJOINT => Advice::Disjoint,
            (Setting::Auto, Modern::Disjoint { .. } | Modern::Unknown) => Advice::Ask,
        }
    }

    /// Whether a legacy client's handshake is to be tried as it is.
    pub(super) fn has_handshake(&self, now: Instant) -> bool {
        match self.setting {
            Setting::Legacy => true,
            Setting::Modern => false,
            Setting::Auto => self.handshake_refused.is_none_or(|since| now >= since + NO_HANDSHAKE),
        }
    }

    /// Whether it makes sense to ask a server that refused a handshake.
    pub(super) fn may_be_modern(&self) -> bool {
        self.setting != Setting::Legacy
    }

    /// Whether a sign that the server is of the legacy era is worth asking.
    pub(super) fn may_doubt(&self, now: Instant) -> bool {
        self.setting == Setting::Auto && !self.is_quiet(now)
    }

    fn is_quiet(&self, now: Instant) -> bool {
        self.doubted.is_some_and(|since| now < since + QUIET)
    }

    /// What the server says of itself, while it holds and if it says so to everybody; `is_shared` where it sees no callers
    /// apart.
    pub(super) fn discovered(&self, now: Instant, is_shared: bool) -> Option<Arc<Discovered>> {
        match &self.modern {
            Modern::Spoken(known) if !is_shared || known.is_private => None,
            Modern::Spoken(discovered) if discovered.result.is_some() && now < discovered.until => {
                Some(Arc::clone(discovered))
            }
            _ => None,
        }
    }

    pub(super) fn is_modern(&mut self, discovered: Arc<Discovered>, _now: Instant) {
        self.modern = Modern::Spoken(discovered);
    }

    pub(super) fn is_legacy(&mut self, now: Instant) {
        self.modern = Modern::NotSpoken { since: now };
        // One of the two must be.
        self.handshake_refused = None;
        self.doubted = None;
    }

    pub(super) fn is_disjoint(&mut self, now: Instant) {
        self.modern = Modern::Disjoint { since: now };
    }

    /// Whether any client can be served. A verdict that cuts a server off stands until something else is learnt: where no
    /// clients are sent, none of them asks again.
    pub(super) fn standing(&self, now: Instant) -> Standing {
        match &self.modern {
            Modern::Disjoint { since } if !self.handshake_taken => {
                if now < *since + DISJOINT || self.is_quiet(now) {
                    Standing::CutOff
                } else {
                    Standing::CutOffBefore
                }
            }
            _ => Standing::Served,
        }
    }

    /// Notes what came of a handshake.
    pub(super) fn handshake_ended(&mut self, is_taken: bool) {
        self.handshake_taken = is_taken;
    }

    pub(super) fn handshake_refused(&mut self, now: Instant) {
        self.handshake_refused = Some(now);
    }

    pub(super) fn forget_modern(&mut self) {
        self.modern = Modern::Unknown;
    }

    /// Notes that a doubt had no ground, or that an old verdict is being looked at, so that not each request asks.
    pub(super) fn doubted(&mut self, now: Instant) {
        self.doubted = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_secs(1);

    fn discovered(result: Option<&str>, now: Instant) -> Arc<Discovered> {
        Arc::new(Discovered::new(result.map(Into::into), now))
    }

    #[test]
    fn what_is_configured_is_not_asked() {
        let now = Instant::now();
        let (legacy, modern) = (Verdicts::new(Setting::Legacy), Verdicts::new(Setting::Modern));
        assert_eq!((legacy.for_modern(now), modern.for_modern(now)), (Advice::Legacy, Advice::Modern));
        assert!(legacy.has_handshake(now) && !modern.has_handshake(now));
        assert!(!legacy.may_be_modern() && !legacy.may_doubt(now) && !modern.may_doubt(now));
    }

    #[test]
    fn verdicts_are_one_for_each_era_and_grow_old() {
        let now = Instant::now();
        let mut verdicts = Verdicts::new(Setting::Auto);
        assert_eq!(verdicts.for_modern(now), Advice::Ask);
        // A server of both eras.
        verdicts.is_modern(discovered(None, now), now);
        assert!(verdicts.for_modern(now + 10 * LEGACY) == Advice::Modern && verdicts.has_handshake(now));
        // One without handshakes.
        verdicts.handshake_refused(now);
        assert!(!verdicts.has_handshake(now + NO_HANDSHAKE - MOMENT) && verdicts.has_handshake(now + NO_HANDSHAKE));
        // One that was taken back to the older era.
        verdicts.is_legacy(now);
        assert!(verdicts.has_handshake(now));
        assert_eq!(verdicts.for_modern(now + LEGACY - MOMENT), Advice::Legacy);
        assert_eq!(verdicts.for_modern(now + LEGACY), Advice::LegacyForNow);
        verdicts.doubted(now + LEGACY);
        assert_eq!(verdicts.for_modern(now + LEGACY), Advice::Legacy);
        assert_eq!(verdicts.for_modern(now + LEGACY + QUIET), Advice::LegacyForNow);
        verdicts.is_disjoint(now);
        assert_eq!(verdicts.for_modern(now + DISJOINT - MOMENT), Advice::Disjoint);
        assert_eq!(verdicts.for_modern(now + DISJOINT), Advice::Ask);
    }

    #[test]
    fn a_server_without_a_common_version_is_cut_off_until_something_else_is_learnt() {
        let now = Instant::now();
        for setting in [Setting::Auto, Setting::Modern] {
            let mut verdicts = Verdicts::new(setting);
            assert_eq!(verdicts.standing(now), Standing::Served);
            verdicts.is_disjoint(now);
            assert_eq!(verdicts.standing(now + DISJOINT - MOMENT), Standing::CutOff);
            assert_eq!(verdicts.standing(now + 100 * DISJOINT), Standing::CutOffBefore);
            // While it is being asked again.
            verdicts.doubted(now + DISJOINT);
            assert_eq!(verdicts.standing(now + DISJOINT + QUIET - MOMENT), Standing::CutOff);
            assert_eq!(verdicts.standing(now + DISJOINT + QUIET), Standing::CutOffBefore);
            // Clients of the older era can be served.
            verdicts.handshake_ended(true);
            assert_eq!(verdicts.standing(now), Standing::Served);
            verdicts.handshake_ended(false);
            assert_eq!(verdicts.standing(now), Standing::CutOff);
            verdicts.is_modern(discovered(None, now), now);
            assert_eq!(verdicts.standing(now), Standing::Served);
            verdicts.is_disjoint(now);
            verdicts.is_legacy(now);
            assert_eq!(verdicts.standing(now), Standing::Served);
        }
    }

    #[test]
    fn a_doubt_without_ground_keeps_the_next_ones_quiet() {
        let now = Instant::now();
        let mut verdicts = Verdicts::new(Setting::Auto);
        verdicts.is_modern(discovered(None, now), now);
        assert!(verdicts.may_doubt(now));
        verdicts.doubted(now);
        assert!(!verdicts.may_doubt(now + QUIET - MOMENT) && verdicts.may_doubt(now + QUIET));
        verdicts.is_legacy(now);
        assert!(verdicts.may_doubt(now));
        verdicts.forget_modern();
        assert_eq!(verdicts.for_modern(now), Advice::Ask);
    }

    #[test]
    fn what_was_discovered_holds_as_long_as_it_says() {
        let now = Instant::now();
        let held = |result: Option<&str>, at: Instant| {
            let mut verdicts = Verdicts::new(Setting::Auto);
            verdicts.is_modern(discovered(result, now), now);
            verdicts.discovered(at, true).is_some()
        };
        let minute = Some(r#"{"ttlMs":60000}"#);
        assert!(held(minute, now + 59 * MOMENT) && !held(minute, now + 60 * MOMENT));
        let ages = Some(r#"{"ttlMs":18446744073709551615}"#);
        assert!(held(ages, now + FRESH - MOMENT) && !held(ages, now + FRESH));
        for stale in [Some("{}"), Some(r#"{"ttlMs":0}"#), Some(r#"{"ttlMs":-1}"#)] {
            assert!(held(stale, now) && !held(stale, now + SETTLING), "{stale:?}");
        }
        assert!(!held(None, now));
        // What is one caller's answers nobody else.
        assert!(!held(Some(r#"{"ttlMs":60000,"cacheScope":"private"}"#), now));
        assert!(held(Some(r#"{"ttlMs":60000,"cacheScope":"public"}"#), now));
        let mut verdicts = Verdicts::new(Setting::Auto);
        verdicts.is_modern(discovered(minute, now), now);
        assert!(verdicts.discovered(now, false).is_none() && verdicts.for_modern(now) == Advice::Modern);
    }
}
