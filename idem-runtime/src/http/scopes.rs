//! `ScopeKey` for what actix extracts.

use actix_web::web;

use crate::model::{ScopeKey, ScopeWriter};

impl<T: ScopeKey> ScopeKey for web::Path<T> {
    fn write_scope(&self, scope: &mut ScopeWriter) {
        T::write_scope(self, scope);
    }
}

impl<T: ScopeKey + Clone + 'static> ScopeKey for web::ReqData<T> {
    fn write_scope(&self, scope: &mut ScopeWriter) {
        T::write_scope(self, scope);
    }
}
