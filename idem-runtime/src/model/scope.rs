//! Who owns a key: the scope, and the trait that makes one of a handler's parameter.

use std::{borrow::Cow, fmt, rc::Rc, sync::Arc};

/// The longest scope in bytes, after encoding: it is part of a primary key.
const LONGEST: usize = 512;

/// Owns idempotency keys: the same key in two scopes is two keys.
///
/// The text is readable in `psql` on purpose. `Debug` never prints it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope(Box<str>);

impl Scope {
    /// Makes the scope of a value.
    ///
    /// # Errors
    ///
    /// When a part is empty (a broken extractor must not put strangers into one scope) or the
    /// whole is longer than 512 bytes.
    pub fn of(value: &(impl ScopeKey + ?Sized)) -> Result<Self, InvalidScope> {
        let mut writer = ScopeWriter::default();
        value.write_scope(&mut writer);
        match writer {
            ScopeWriter { empty: true, .. } | ScopeWriter { parts: 0, .. } => {
                Err(InvalidScope::Empty)
            }
            ScopeWriter { text, .. } if text.len() > LONGEST => Err(InvalidScope::TooLong),
            ScopeWriter { text, .. } => Ok(Self(text.into())),
        }
    }

    /// The one scope that all callers share; no value encodes to it.
    #[must_use]
    pub fn global() -> Self {
        Self("".into())
    }

    /// The encoded scope, as it stands in the `scope` column.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scope(..)")
    }
}

/// Why a value is no scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidScope {
    /// A part of the scope is an empty text.
    #[error("a part of the scope is empty, so its callers would share one scope")]
    Empty,
    /// The encoded scope is longer than 512 bytes.
    #[error("the scope is longer than {LONGEST} bytes")]
    TooLong,
}

/// Names the owner of an idempotency key.
///
/// Implemented for texts, integers, `uuid::Uuid` (feature `uuid`), `web::Path` and `web::ReqData`
/// of such, and for tuples of them. Derive it for a type of your own:
///
/// ```
/// use idem_runtime::ScopeKey;
///
/// #[derive(ScopeKey)]
/// struct Account {
///     tenant: String,
///     id: i64,
///     #[scope(skip)]
///     display_name: String,
/// }
/// # let _ = Account { tenant: String::new(), id: 1, display_name: String::new() }.display_name;
/// ```
///
/// A value with an empty part, or longer than 512 bytes once it is written, is nobody: the request is
/// answered 400, `scope-invalid`, before the handler or the database hears of it. Often the client has
/// chosen such a value, in the path for example. Where the service itself has made it, say an
/// extractor that takes a session without a user for one, the same answer keeps strangers out of
/// each other's scope, and a line in the log at level WARN names the handler: an extractor of a
/// service should refuse nobody with an answer of its own, 401 for example.
///
/// Two values that are different owners must write different parts. There is no implementation
/// for `Option`: an anonymous caller has no scope of its own, and one scope for all of them would
/// replay the answers of one to another.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the scope of an idempotency key",
    label = "this is no scope",
    note = "a scope says who owns the key: a text, an integer, a `Uuid` (feature `uuid`), a `web::Path` or `web::ReqData` of such, or a tuple of them",
    note = "name a field of it (`scope = account.id`), or put `#[derive(ScopeKey)]` on the type"
)]
pub trait ScopeKey {
    /// Writes the parts that tell this owner from every other.
    fn write_scope(&self, scope: &mut ScopeWriter);
}

/// Collects the parts of a scope so that different lists of parts become different texts.
#[derive(Default)]
pub struct ScopeWriter {
    text: String,
    parts: usize,
    empty: bool,
}

impl ScopeWriter {
    /// Adds one part; it may hold any characters.
    pub fn part(&mut self, part: &str) {
        if self.parts > 0 {
            self.text.push('/');
        }
        self.parts += 1;
        self.empty |= part.is_empty();
        for character in part.chars() {
            match character {
                '/' => self.text.push_str("\\/"),
                '\\' => self.text.push_str("\\\\"),
                // PostgreSQL's text cannot hold it.
                '\0' => self.text.push_str("\\0"),
                other => self.text.push(other),
            }
        }
    }
}

impl fmt::Debug for ScopeWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopeWriter")
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

impl<T: ScopeKey + ?Sized> ScopeKey for &T {
    fn write_scope(&self, scope: &mut ScopeWriter) {
        T::write_scope(self, scope);
    }
}

/// Refuses `Option` with an explanation of its own.
#[diagnostic::on_unimplemented(
    message = "an `Option` cannot be the scope of an idempotency key",
    label = "this may be `None`",
    note = "callers without an owner would share one scope, and one would get the answer of another",
    note = "take the value out in an extractor that answers 401 when it is missing; if all callers may share their keys, write `scope = global`"
)]
pub trait NeverAnonymous {}

impl<T> ScopeKey for Option<T>
where
    Option<T>: NeverAnonymous,
{
    fn write_scope(&self, _: &mut ScopeWriter) {}
}

macro_rules! texts {
    ($($text:ty),*) => {$(
        impl ScopeKey for $text {
            fn write_scope(&self, scope: &mut ScopeWriter) {
                scope.part(self);
            }
        }
    )*};
}
texts!(str, String, Box<str>, Rc<str>, Arc<str>, Cow<'_, str>);

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl ScopeKey for $number {
            fn write_scope(&self, scope: &mut ScopeWriter) {
                scope.part(&self.to_string());
            }
        }
    )*};
}
numbers!(
    i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize
);

#[cfg(feature = "uuid")]
impl ScopeKey for uuid::Uuid {
    fn write_scope(&self, scope: &mut ScopeWriter) {
        scope.part(
            self.hyphenated()
                .encode_lower(&mut uuid::Uuid::encode_buffer()),
        );
    }
}

macro_rules! tuples {
    ($($name:ident)+) => {
        impl<$($name: ScopeKey),+> ScopeKey for ($($name,)+) {
            fn write_scope(&self, scope: &mut ScopeWriter) {
                #[allow(non_snake_case, reason = "one name for a type and its value")]
                let ($($name,)+) = self;
                $($name.write_scope(scope);)+
            }
        }
    };
}
tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(value: &(impl ScopeKey + ?Sized)) -> String {
        Scope::of(value).unwrap().as_str().to_owned()
    }

    #[test]
    fn a_scope_reads_as_what_it_is() {
        assert_eq!(text("acct_1"), "acct_1");
        assert_eq!(text(&("acme", 42_u64)), "acme/42");
        assert_eq!(text(&-7_i64), "-7");
    }

    #[test]
    fn separators_in_a_part_do_not_separate() {
        assert_ne!(text(&("a/b", "c")), text(&("a", "b/c")));
        assert_ne!(text(&("a\\", "c")), text(&("a", "\\c")));
        assert_ne!(text("a\0"), text("a\\0"));
        assert!(!text("a\0").contains('\0'));
    }

    #[test]
    fn an_empty_part_is_refused_so_that_no_value_is_the_global_scope() {
        assert_eq!(Scope::of(""), Err(InvalidScope::Empty));
        assert_eq!(Scope::of(&("acme", "")), Err(InvalidScope::Empty));
        assert_eq!(Scope::of(&("", "x")), Err(InvalidScope::Empty));
        assert_eq!(Scope::global().as_str(), "");
    }

    #[test]
    fn a_scope_longer_than_the_column_takes_is_refused() {
        assert!(Scope::of(&"a".repeat(512)).is_ok());
        assert_eq!(Scope::of(&"a".repeat(513)), Err(InvalidScope::TooLong));
        assert_eq!(Scope::of(&"/".repeat(300)), Err(InvalidScope::TooLong));
    }

    #[test]
    fn debug_prints_no_scope() {
        assert!(!format!("{:?}", Scope::of("acct_1").unwrap()).contains("acct"));
    }

    proptest! {
        #[test]
        fn different_tuples_are_different_scopes(
            left in ("[/\\\\\0a]{1,4}", "[/\\\\\0a]{1,4}", "[/\\\\\0a]{1,4}"),
            right in ("[/\\\\\0a]{1,4}", "[/\\\\\0a]{1,4}", "[/\\\\\0a]{1,4}"),
        ) {
            prop_assert_eq!(left == right, text(&left) == text(&right));
        }
    }
}
