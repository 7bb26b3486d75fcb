//! What the acceptance tests share: a database for each test, a relay that counts and breaks traffic, HTTP over bare sockets.

mod support;

pub use support::{database, kinds, raw_http, relay, service};
