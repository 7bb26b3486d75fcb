//! Everything that generated code names, and nothing else. Not part of the public interface.

pub use actix_web::{HttpRequest, HttpResponse, web::Payload};

pub use crate::{
    http::{authorized, everyone, global_scope, key, key_in_header, respond, run, scope},
    model::{Fingerprinting, Isolation, Policy, ScopeKey, ScopeWriter},
};
