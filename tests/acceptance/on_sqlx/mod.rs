//! What holds over both of sqlx's databases, for handlers that take its own types.

mod transactions;

use super::{Driver, Kind, routes, shared};

type Connection = <Driver as sqlx::Database>::Connection;
