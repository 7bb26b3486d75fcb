//! Media types: the part of a `Content-Type` that changes what a body means.

/// More parameters than any media type has; keeps the search for repeated names short.
const MAX_PARAMETERS: usize = 16;

/// A parsed `Content-Type`.
pub(super) struct MediaType {
    /// Type and subtype in lower case.
    essence: String,
    /// Names in lower case, each once, and values without quotes and escapes, in order.
    parameters: Vec<(String, String)>,
}

impl MediaType {
    /// Parses the value of a `Content-Type` header by RFC 9110; `None` where it is malformed or
    /// repeats a parameter.
    pub(super) fn parse(value: &str) -> Option<Self> {
        let (essence, mut rest) = value.split_once(';').unwrap_or((value, ""));
        let essence = trim(essence);
        let (kind, subtype) = essence.split_once('/')?;
        if !is_token(kind) || !is_token(subtype) {
            return None;
        }
        let mut media_type = Self {
            essence: essence.to_ascii_lowercase(),
            parameters: Vec::new(),
        };
        loop {
            rest = trim(rest);
            if rest.is_empty() {
                return Some(media_type);
            }
            if !rest.starts_with(';') {
                rest = media_type.parse_parameter(rest)?;
            }
            rest = rest.strip_prefix(';').unwrap_or(rest);
        }
    }

    /// Takes one parameter off the front of `text` and returns what follows it: nothing, or a
    /// semicolon and more.
    fn parse_parameter<'a>(&mut self, text: &'a str) -> Option<&'a str> {
        let (name, text) = text.split_once('=')?;
        let (value, rest) = text.strip_prefix('"').map_or_else(|| bare(text), unquote)?;
        let name = name.to_ascii_lowercase();
        let rest = trim(rest);
        if !is_token(&name)
            || self.parameter(&name).is_some()
            || self.parameters.len() == MAX_PARAMETERS
        {
            return None;
        }
        self.parameters.push((name, value));
        (rest.is_empty() || rest.starts_with(';')).then_some(rest)
    }

    /// Tells whether bodies of this type are JSON texts.
    pub(super) fn is_json(&self) -> bool {
        matches!(self.essence.as_str(), "application/json" | "text/json")
            || self.essence.ends_with("+json")
    }

    /// Tells whether bodies of this type consist of parts.
    pub(super) fn is_multipart(&self) -> bool {
        self.essence.starts_with("multipart/")
    }

    /// Returns what separates the parts of a multipart body.
    pub(super) fn boundary(&self) -> Option<&str> {
        if self.is_multipart() {
            self.parameter("boundary")
        } else {
            None
        }
    }

    /// Writes the media type without the parameters that do not change what a body means.
    ///
    /// The result is well-formed itself, so it never equals a malformed media type that stands as it
    /// was sent.
    pub(super) fn normalised(&self) -> String {
        let mut text = self.essence.clone();
        for (name, value) in self
            .parameters
            .iter()
            .filter(|(name, value)| self.has_meaning(name, value))
        {
            text.extend([";", name, "=\""]);
            for character in value.chars() {
                if matches!(character, '"' | '\\') {
                    text.push('\\');
                }
                text.push(character);
            }
            text.push('"');
        }
        text
    }

    fn has_meaning(&self, name: &str, value: &str) -> bool {
        match name {
            "boundary" => !self.is_multipart(),
            "charset" => !self.is_json() && !value.eq_ignore_ascii_case("utf-8"),
            _ => true,
        }
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, value)| value.as_str())
    }
}

/// Splits a value without quotes from what follows it.
fn bare(text: &str) -> Option<(String, &str)> {
    let (value, rest) = text.split_at_checked(text.find([';', ' ', '\t']).unwrap_or(text.len()))?;
    is_token(value).then(|| (value.to_owned(), rest))
}

/// Undoes the escapes of a quoted string whose opening quote is gone; returns it and what follows.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut rest = quoted.chars();
    loop {
        let character = match rest.next()? {
            '"' => return Some((value, rest.as_str())),
            '\\' => rest.next()?,
            character => character,
        };
        if character.is_ascii_control() && character != '\t' {
            return None;
        }
        value.push(character);
    }
}

fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

/// Tells whether `text` is a token of RFC 9110.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalised(value: &str) -> Option<String> {
        MediaType::parse(value).map(|media_type| media_type.normalised())
    }

    #[test]
    fn parameters_without_meaning_are_dropped() {
        let table = [
            (
                "application/json",
                vec![
                    "Application/JSON",
                    " application/json ; charset=latin1",
                    "application/json;",
                    "application/json;;charset=\"UTF-8\";",
                ],
            ),
            (
                "text/plain",
                vec![
                    "text/plain; charset=utf-8",
                    "TEXT/plain;Charset=UTF-8",
                    "text/plain;charset=\"u\\tf-8\"",
                ],
            ),
            (
                "multipart/form-data",
                vec![
                    "multipart/form-data; boundary=abc",
                    "multipart/form-data; BOUNDARY=\"a b\"",
                ],
            ),
        ];
        for (expected, values) in table {
            for value in values {
                assert_eq!(normalised(value).as_deref(), Some(expected), "{value:?}");
            }
        }
    }

    #[test]
    fn parameters_with_meaning_are_kept_in_one_notation() {
        let table = [
            (
                r#"text/plain;charset="latin1""#,
                vec![
                    "text/plain; charset=latin1",
                    "text/plain;\tCHARSET=\"latin1\" ",
                ],
            ),
            (
                r#"application/json;version="2""#,
                vec![
                    "application/json; charset=x ;Version=2",
                    "application/json;version=\"2\"",
                ],
            ),
            (
                r#"application/x;boundary="a""#,
                vec!["application/x;boundary=a"],
            ),
            (
                r#"application/x;a="";b="\"\\; ü""#,
                vec![r#"application/x; a=""; b="\"\\\; ü""#],
            ),
        ];
        for (expected, values) in table {
            for value in values {
                assert_eq!(normalised(value).as_deref(), Some(expected), "{value:?}");
                assert_eq!(normalised(expected).as_deref(), Some(expected));
            }
        }
    }

    #[test]
    fn malformed_and_ambiguous_types_are_not_parsed() {
        for value in [
            "",
            "json",
            "/",
            "a/",
            "/a",
            "a/b/c",
            "a b/c",
            "ä/b",
            "a/b c",
            "a/b; c",
            "a/b; c=",
            "a/b; c =d",
            "a/b; c= d",
            "a/b; =d",
            "a/b; c=d e=f",
            "a/b; c=\"d",
            "a/b; c=\"d\\",
            "a/b; c=\"d\"e",
            "a/b; c=\"\n\"",
            "a/b; c=d=e",
            "a/b; c=1; C=1",
            "a/b, c/d",
        ] {
            assert_eq!(normalised(value), None, "{value:?}");
        }
        let mut many = "a/b".to_owned();
        for n in 0..=MAX_PARAMETERS {
            many.extend([";p", &n.to_string(), "=1"]);
        }
        assert_eq!(normalised(&many), None);
    }

    #[test]
    fn json_and_multipart_types_are_recognised() {
        for value in [
            "application/json",
            "text/JSON",
            "application/problem+json; charset=utf-8",
            "x/y+Json",
        ] {
            assert!(
                MediaType::parse(value).is_some_and(|media_type| media_type.is_json()),
                "{value:?}"
            );
        }
        for value in [
            "application/jsonp",
            "application/x-json",
            "application/json-seq",
            "application/xml",
        ] {
            assert!(
                MediaType::parse(value).is_some_and(|media_type| !media_type.is_json()),
                "{value:?}"
            );
        }
        let mixed = MediaType::parse("Multipart/Mixed; Boundary=\"a b\"").unwrap();
        assert_eq!(mixed.boundary(), Some("a b"));
        assert_eq!(
            MediaType::parse("text/plain; boundary=a")
                .unwrap()
                .boundary(),
            None
        );
    }
}
