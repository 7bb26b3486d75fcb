//! Everything that generated code names, and nothing else. Not part of the public interface.

pub use actix_web::{HttpRequest, HttpResponse, web::Payload};

pub use crate::{
    http::{authorized, boxed, everyone, global_scope, key, key_in_header, respond, run, scope},
    model::{Fingerprinting, Isolation, Policy, ScopeKey, ScopeWriter},
};

#[cfg(feature = "utoipa")]
pub use inventory;

#[cfg(feature = "utoipa")]
pub use crate::openapi::Registered;

/// Makes a policy known to the process, for its OpenAPI document.
#[cfg(feature = "utoipa")]
#[doc(hidden)]
#[macro_export]
macro_rules! __idem_register {
    ($policy:expr) => {
        $crate::__private::inventory::submit! { $crate::__private::Registered($policy) }
    };
}

/// Nobody asks for the policies of this process.
#[cfg(not(feature = "utoipa"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __idem_register {
    ($policy:expr) => {};
}

pub use __idem_register as register;
