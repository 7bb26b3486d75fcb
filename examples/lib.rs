//! Small services.
