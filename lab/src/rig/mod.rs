//! What a trial is made of: a database, a proxy before it, and service processes.

pub(crate) mod database;
pub(crate) mod process;
pub(crate) mod proxy;
