//! Values with a form of their own: secrets, durations, sizes, rates.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A text that never stands in logs: in the file itself, or in a file that it names.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Secret {
    /// The text, usually `${NAME}` from the environment.
    Text(String),
    /// The name of a file that has the text; a line break at its end is dropped.
    File(SecretFile),
}

/// The name of a file that has a secret.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SecretFile {
    /// Path, relative to the configuration file.
    #[schemars(extend("x-required" = true))]
    pub(crate) file: String,
}

/// A text with a form of its own, which `units` reads. The patterns let `${NAME}` pass, for editors that know the schema.
macro_rules! texts {
    ($($name:ident $type:tt $pattern:literal $example:literal $description:literal;)+) => {$(
        #[doc = $description]
        #[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(transparent)]
        pub(crate) struct $name(pub(crate) String);

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "type": $type,
                    "pattern": $pattern,
                    "examples": [$example],
                    "description": $description,
                })
            }
        }
    )+};
}

texts! {
    Duration "string" r"^[0-9]+(ms|s|m|h)$|\$\{" "30s" "A number with `ms`, `s`, `m` or `h`.";
    Defer "string" r"^([0-9]+(ms|s|m|h)|never)$|\$\{" "500ms" "A duration, or `never`.";
    Size ["string", "integer"] r"^[0-9]+(B|KiB|MiB|GiB)?$|\$\{" "16MiB" "Bytes, or a number with `KiB`, `MiB` or `GiB`.";
    Rate "string" r"^[0-9]+/[sm]$|\$\{" "100/s" "A number for each second (`/s`) or minute (`/m`).";
}
