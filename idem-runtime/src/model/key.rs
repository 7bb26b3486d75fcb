//! The idempotency key: its grammar, and the values that can become one.

use std::borrow::Cow;
use std::fmt;

/// The most characters a key may have.
const MAX_LENGTH: usize = 255;

/// Names one business operation of one client: 1 to 255 visible ASCII characters.
///
/// `Debug` does not print it: whoever knows a key can ask for the answer stored under it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(Box<str>);

impl Key {
    /// Takes `text` verbatim, as it stands in a form field or a body.
    ///
    /// # Errors
    ///
    /// If `text` is empty, longer than 255 characters, or not visible ASCII throughout.
    pub fn new(text: &str) -> Result<Self, InvalidKey> {
        if text.is_empty() {
            return Err(InvalidKey::Empty);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidKey::Character);
        }
        if text.len() > MAX_LENGTH {
            return Err(InvalidKey::TooLong);
        }
        Ok(Self(text.into()))
    }

    /// Reads the value of one header line, with or without the quotes of an RFC 8941 string.
    ///
    /// `abc` and `"abc"` are the same key. White space around either is dropped.
    ///
    /// # Errors
    ///
    /// If quotes are unbalanced, stand inside a bare value or are followed by anything, if a
    /// backslash inside quotes escapes something other than `"` or `\`, or if what remains is no
    /// key by the rules of [`Key::new`].
    pub fn from_header(value: &[u8]) -> Result<Self, InvalidKey> {
        let text = str::from_utf8(value).map_err(|_| InvalidKey::Character)?;
        let text = text.trim_matches([' ', '\t']);
        match text.strip_prefix('"') {
            Some(quoted) => Self::new(&unquote(quoted)?),
            None if text.contains('"') => Err(InvalidKey::Quoting),
            None => Self::new(text),
        }
    }

    /// Returns the key without quotes or escapes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").finish_non_exhaustive()
    }
}

/// Undoes the escapes of a quoted string whose opening quote is already gone.
fn unquote(quoted: &str) -> Result<String, InvalidKey> {
    let mut text = String::new();
    let mut characters = quoted.chars();
    loop {
        match characters.next() {
            Some('"') => break,
            Some('\\') => match characters.next() {
                Some(escaped @ ('"' | '\\')) => text.push(escaped),
                _ => return Err(InvalidKey::Quoting),
            },
            Some(character) => text.push(character),
            None => return Err(InvalidKey::Quoting),
        }
    }
    // Parameters or a second member of a list: part of the key to some readers and not to others.
    if characters.next().is_some() {
        return Err(InvalidKey::Quoting);
    }
    Ok(text)
}

/// Says why a value is no idempotency key, in a sentence for the client that does not repeat it.
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidKey {
    /// Nothing was left after white space and quotes.
    #[error("The idempotency key is empty.")]
    Empty,
    /// The key has more than 255 characters.
    #[error("The idempotency key is longer than 255 characters.")]
    TooLong,
    /// The key holds a space, a control character or something beyond ASCII.
    #[error("The idempotency key contains a space or another character that is not visible ASCII.")]
    Character,
    /// The key's quotes or escapes are not those of one quoted string.
    #[error(
        "The idempotency key is neither a value without quotes nor one well-formed quoted string."
    )]
    Quoting,
}

/// A value that can carry the key where an API has it in the request: `key = form.idempotency_key`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an idempotency key",
    label = "not a string, an integer or a UUID",
    note = "a key is a string (`String`, `&str`, `Cow<str>`, `Box<str>`), an integer, a `Uuid` \
            (feature `uuid`) or an `Option` of one of them, where `None` means that there is none",
    note = "for a type of your own, name the field that holds the key or implement `KeySource`"
)]
pub trait KeySource {
    /// Returns the key, or `None` where the request carries none.
    ///
    /// # Errors
    ///
    /// If there is a value but it is no key by the rules of [`Key::new`]. An empty string is such a
    /// value: invalid, not missing.
    fn to_key(&self) -> Result<Option<Key>, InvalidKey>;
}

impl KeySource for str {
    fn to_key(&self) -> Result<Option<Key>, InvalidKey> {
        Key::new(self).map(Some)
    }
}

impl KeySource for String {
    fn to_key(&self) -> Result<Option<Key>, InvalidKey> {
        self.as_str().to_key()
    }
}

impl KeySource for Cow<'_, str> {
    fn to_key(&self) -> Result<Option<Key>, InvalidKey> {
        self.as_ref().to_key()
    }
}

impl KeySource for Box<str> {
    fn to_key(&self) -> Result<Option<Key>, InvalidKey> {
        self.as_ref().to_key()
    }
}

impl<T: KeySource + ?Sized> KeySource for &T {
    fn to_key(&self) -> Result<Option<Key>, InvalidKey> {
        (**self).to_key()
    }
}

impl<T: KeySource> KeySource for Option<T> {
    fn to_key(&self) -> Result<Option<Key>, InvalidKey> {
        self.as_ref().map_or(Ok(None), KeySource::to_key)
    }
}

macro_rules! integer_keys {
    ($($integer:ty),*) => {$(
        impl KeySource for $integer {
            fn to_key(&self) -> Result<Option<Key>, InvalidKey> {
                self.to_string().to_key()
            }
        }
    )*};
}

integer_keys!(i16, i32, i64, i128, u16, u32, u64, u128);

#[cfg(feature = "uuid")]
impl KeySource for uuid::Uuid {
    fn to_key(&self) -> Result<Option<Key>, InvalidKey> {
        self.to_string().to_key()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(value: &str) -> Result<String, InvalidKey> {
        Key::from_header(value.as_bytes()).map(|key| key.as_str().to_owned())
    }

    fn quoted(text: &str) -> String {
        format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
    }

    #[test]
    fn bare_and_quoted_values_are_the_same_key() {
        for value in ["abc", "\"abc\"", "  abc ", "\t\"abc\" \t"] {
            assert_eq!(header(value), Ok("abc".to_owned()), "{value:?}");
        }
        assert_eq!(header(r#""a\"b\\c""#), Ok(r#"a"b\c"#.to_owned()));
        assert_eq!(header(r"a\b,c;d=e"), Ok(r"a\b,c;d=e".to_owned()));
    }

    #[test]
    fn malformed_values_are_refused_with_the_reason() {
        let table = [
            (InvalidKey::Empty, vec!["", " ", "\t ", "\"\"", " \"\" "]),
            (
                InvalidKey::Character,
                vec![
                    "a b",
                    "\"a b\"",
                    "\" a\"",
                    "a\tb",
                    "\"a\u{7f}\"",
                    "a\0",
                    "schlüssel",
                    "\"ü\"",
                    "\u{a0}a",
                ],
            ),
            (
                InvalidKey::Quoting,
                vec![
                    "\"",
                    "\"abc",
                    "abc\"",
                    "a\"b",
                    "\"a\"b\"",
                    "\"abc\\\"",
                    "\"a\\n\"",
                    "\"a\\",
                    "\"a\";b=1",
                    "\"a\", \"b\"",
                    "\"a\"\"b\"",
                ],
            ),
        ];
        for (reason, values) in table {
            for value in values {
                assert_eq!(header(value), Err(reason), "{value:?}");
            }
        }
        assert_eq!(Key::from_header(b"a\xff"), Err(InvalidKey::Character));
    }

    #[test]
    fn the_longest_key_has_255_characters() {
        let longest = "k".repeat(255);
        assert_eq!(header(&longest), Ok(longest.clone()));
        assert_eq!(header(&quoted(&longest)), Ok(longest));
        assert_eq!(header(&"k".repeat(256)), Err(InvalidKey::TooLong));
        // Escapes do not count.
        assert!(header(&quoted(&"\"".repeat(255))).is_ok());
    }

    #[test]
    fn quotes_in_a_form_field_belong_to_the_key() {
        assert_eq!(Key::new("\"abc\"").unwrap().as_str(), "\"abc\"");
        assert_eq!(Key::new(" abc"), Err(InvalidKey::Character));
    }

    #[test]
    fn debug_output_does_not_contain_the_key() {
        assert_eq!(format!("{:?}", Key::new("s3cret").unwrap()), "Key(..)");
    }

    #[test]
    fn strings_integers_and_options_carry_keys() {
        fn text(source: impl KeySource) -> Result<Option<String>, InvalidKey> {
            Ok(source.to_key()?.map(|key| key.as_str().to_owned()))
        }
        let abc = Ok(Some("abc".to_owned()));
        assert_eq!(text("abc"), abc);
        let field = "abc".to_owned();
        assert_eq!(text(&field), abc);
        assert_eq!(text(Some(&field)), abc);
        assert_eq!(text(field), abc);
        assert_eq!(text(Cow::Borrowed("abc")), abc);
        assert_eq!(text(Box::<str>::from("abc")), abc);
        assert_eq!(text(Some("abc")), abc);
        assert_eq!(text(Some(Some("abc"))), abc);
        assert_eq!(text(None::<String>), Ok(None));
        assert_eq!(text(-7_i64), Ok(Some("-7".to_owned())));
        assert_eq!(text(u64::MAX), Ok(Some("18446744073709551615".to_owned())));
    }

    #[test]
    fn empty_field_is_an_invalid_key_and_not_a_missing_one() {
        assert_eq!(Some("").to_key(), Err(InvalidKey::Empty));
    }

    #[cfg(feature = "uuid")]
    #[test]
    fn uuid_is_a_key_in_its_hyphenated_form() {
        let key = uuid::Uuid::from_u128(0xA1).to_key().unwrap().unwrap();
        assert_eq!(key.as_str(), "00000000-0000-0000-0000-0000000000a1");
    }

    proptest! {
        #[test]
        fn quoted_strings_are_read_as_structured_fields_are(
            value in r#" {0,2}"([a-c]|\\["\\]){0,4}(\\?[a-c ";,\\\x00\x7fü]){0,1}"{0,2}( |;a|,|, "b"){0,1}"#,
        ) {
            let item = sfv::Parser::new(&value).parse::<sfv::Item>().ok();
            // Structured fields allow parameters and spaces here, keys do not.
            let text = item.filter(|item| item.params.is_empty()).and_then(|item| {
                Some(item.bare_item.as_string()?.as_str().to_owned())
            });
            let expected = text.filter(|text| !text.is_empty() && !text.contains(' '));
            prop_assert_eq!(header(&value).ok(), expected);
        }

        #[test]
        fn bare_and_quoted_forms_agree_for_every_key_without_quotes(key in "[!#-~]{1,255}") {
            prop_assert_eq!(header(&quoted(&key)), Ok(key.clone()));
            prop_assert_eq!(header(&key), Ok(key));
        }

        #[test]
        fn accepted_keys_are_short_visible_ascii(value in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..300),
            proptest::collection::vec(0x1f..0x80_u8, 0..8),
            proptest::collection::vec(0x21..0x7f_u8, 250..260),
        ]) {
            if let Ok(key) = Key::from_header(&value) {
                prop_assert!((1..=255).contains(&key.as_str().len()));
                prop_assert!(key.as_str().bytes().all(|byte| (0x21..=0x7e).contains(&byte)));
            }
        }
    }
}
