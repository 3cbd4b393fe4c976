//! OAuth as a client speaks it: towards authorization servers, for keys, metadata and tokens. What a token that a caller
//! shows is worth is decided in `auth`, not here.

pub mod authorization;
pub mod challenge;
pub mod discovery;
pub mod fetch;
pub mod pkce;
pub mod redirect;
pub mod registration;
pub mod secret;
pub mod token;
