//! Rewrites what the user wrote for the places where the expansion needs it again.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Expr, ExprReference, Lifetime, Pat, PatIdent, TypeReference, parse_quote};

/// Borrows an expression so that nothing moves out of the parameters; of a tuple, each element.
pub(super) fn borrow(expression: &Expr) -> TokenStream {
    match expression {
        Expr::Paren(inner) => borrow(&inner.expr),
        Expr::Group(inner) => borrow(&inner.expr),
        Expr::Reference(_) => expression.to_token_stream(),
        Expr::Tuple(elements) => {
            let elements = tuple(elements.elems.iter().map(borrow));
            quote_spanned!(at(expression)=> &#elements)
        }
        _ => {
            // A syntax tree, not tokens: it adds the parentheses that `a + b` needs.
            let mut reference: ExprReference = parse_quote!(&());
            *reference.expr = expression.clone();
            reference.and_token.span = at(expression);
            reference.to_token_stream()
        }
    }
}

/// The pattern as it must stand behind a reference: without `mut`, `ref` and `ref mut`.
pub(super) fn borrowing(pattern: &Pat) -> Pat {
    struct Plain;
    impl VisitMut for Plain {
        fn visit_pat_ident_mut(&mut self, pattern: &mut PatIdent) {
            pattern.by_ref = None;
            pattern.mutability = None;
            visit_mut::visit_pat_ident_mut(self, pattern);
        }
    }
    let mut pattern = pattern.clone();
    Plain.visit_pat_mut(&mut pattern);
    pattern
}

/// Replaces every elided lifetime by `'static`, as an argument of `run` needs it.
pub(super) fn everywhere_static(reference: &TypeReference) -> TypeReference {
    struct Static;
    impl VisitMut for Static {
        fn visit_lifetime_mut(&mut self, lifetime: &mut Lifetime) {
            if lifetime.ident == "_" {
                *lifetime = Lifetime::new("'static", lifetime.span());
            }
        }
        fn visit_type_reference_mut(&mut self, reference: &mut TypeReference) {
            let span = reference.and_token.span;
            reference
                .lifetime
                .get_or_insert_with(|| Lifetime::new("'static", span));
            visit_mut::visit_type_reference_mut(self, reference);
        }
    }
    let mut reference = reference.clone();
    Static.visit_type_reference_mut(&mut reference);
    reference
}

/// A tuple also of one element.
pub(super) fn tuple<T: ToTokens>(elements: impl IntoIterator<Item = T>) -> TokenStream {
    let elements = elements.into_iter();
    quote!((#(#elements,)*))
}

/// The place of the user's tokens, for generated tokens whose errors belong there. Lints still know
/// that nobody wrote them.
pub(super) fn at(tokens: &impl Spanned) -> Span {
    at_span(tokens.span())
}

pub(super) fn at_span(span: Span) -> Span {
    Span::call_site().located_at(span)
}

/// Moves every token to one place; what a name refers to stays the same.
pub(super) fn located(tokens: TokenStream, place: Span) -> TokenStream {
    tokens
        .into_iter()
        .map(|mut token| {
            token.set_span(token.span().located_at(place));
            token
        })
        .collect()
}
