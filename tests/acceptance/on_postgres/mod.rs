//! What holds over PostgreSQL through either driver, which an engine with one writer cannot or need not show.

mod connections;
mod faults;
mod handlers;
mod isolation;
mod logs;
mod lost_commit;
mod processes;
mod protocol;
mod schema;
mod status;

use super::{Kind, MIGRATIONS, shared};

type Pool = <Kind as idem_tests::kinds::Kind>::Pool;
