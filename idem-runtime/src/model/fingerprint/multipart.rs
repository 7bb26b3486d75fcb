//! Multipart bodies by parts: the boundary between them differs on every retry.

use super::media_type::is_token;

/// One part of a multipart body.
pub(super) struct Part<'a> {
    /// The header lines, without the empty line behind them.
    pub(super) headers: &'a [u8],
    /// The content.
    pub(super) body: &'a [u8],
}

/// Splits a body by RFC 2046; `None` where the split is not beyond doubt.
///
/// Readers differ in what they let pass, so this one lets nothing pass: no text outside the parts,
/// no white space behind a boundary, no boundary inside a line, no missing last boundary, no header
/// line without a name.
pub(super) fn parts<'a>(body: &'a [u8], boundary: &str) -> Option<Vec<Part<'a>>> {
    let delimiter = Delimiter::new(boundary)?;
    let start = body.strip_prefix(b"\r\n").unwrap_or(body);
    let mut rest = start.strip_prefix(delimiter.text.as_bytes())?;
    let mut parts = Vec::new();
    loop {
        if let Some(epilogue) = rest.strip_prefix(b"--") {
            return matches!(epilogue, b"" | b"\r\n").then_some(parts);
        }
        let (part, behind) = delimiter.split(rest.strip_prefix(b"\r\n")?)?;
        parts.push(Part::parse(part.strip_suffix(b"\r\n")?)?);
        rest = behind;
    }
}

impl<'a> Part<'a> {
    fn parse(part: &'a [u8]) -> Option<Self> {
        if let Some(body) = part.strip_prefix(b"\r\n") {
            return Some(Self { headers: b"", body });
        }
        let end = part.windows(4).position(|window| window == b"\r\n\r\n")?;
        let (headers, body) = part.split_at_checked(end)?;
        is_header_block(headers).then_some(Self {
            headers,
            body: body.strip_prefix(b"\r\n\r\n")?,
        })
    }
}

fn is_header_block(block: &[u8]) -> bool {
    // A CR or LF that the split leaves behind is a line end to some readers and not to others.
    str::from_utf8(block).is_ok_and(|text| {
        text.split("\r\n").all(|line| {
            !line.contains(['\r', '\n', '\0'])
                && line.split_once(':').is_some_and(|(name, _)| is_token(name))
        })
    })
}

/// Two hyphens and the boundary, with what is needed to find them quickly.
struct Delimiter {
    text: String,
    /// How far the search may move on, by the last byte it looked at (Horspool's algorithm).
    skip: [u8; 256],
}

impl Delimiter {
    /// Accepts the boundaries of RFC 2046: 1 to 70 characters of a small set, no space at the end.
    fn new(boundary: &str) -> Option<Self> {
        let is_valid = (1..=70).contains(&boundary.len())
            && boundary
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&byte))
            && !boundary.ends_with(' ');
        if !is_valid {
            return None;
        }
        let text = format!("--{boundary}");
        let mut skip = [u8::try_from(text.len()).ok()?; 256];
        for (byte, distance) in text.bytes().rev().zip(0..).skip(1) {
            let slot = skip.get_mut(usize::from(byte))?;
            *slot = distance.min(*slot);
        }
        Some(Self { text, skip })
    }

    /// Returns what stands before and behind the first occurrence in `text`.
    fn split<'a>(&self, text: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let mut start = 0;
        loop {
            let (before, rest) = text.split_at_checked(start)?;
            let (window, behind) = rest.split_at_checked(self.text.len())?;
            if window == self.text.as_bytes() {
                return Some((before, behind));
            }
            start += usize::from(*self.skip.get(usize::from(*window.last()?))?);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn split(body: &str) -> Option<Vec<(&str, &str)>> {
        let text = |bytes| str::from_utf8(bytes).unwrap();
        let parts = parts(body.as_bytes(), "b")?;
        Some(
            parts
                .iter()
                .map(|part| (text(part.headers), text(part.body)))
                .collect(),
        )
    }

    #[test]
    fn parts_are_split_into_headers_and_body() {
        assert_eq!(
            split(
                "--b\r\nA: 1\r\nC:\r\n\r\nx\r\ny\r\n--b\r\n\r\n\r\n\r\n--b\r\nA: 2\r\n\r\n\r\n--b--\r\n"
            ),
            Some(vec![("A: 1\r\nC:", "x\r\ny"), ("", "\r\n"), ("A: 2", "")])
        );
        assert_eq!(split("\r\n--b\r\n\r\nx\r\n--b--"), Some(vec![("", "x")]));
        assert_eq!(split("--b--\r\n"), Some(vec![]));
    }

    #[test]
    fn doubtful_bodies_are_not_split() {
        for body in [
            "",
            "--b",
            "--b\r\n",
            "--b\r\n\r\n",
            "--b\r\n\r\nx\r\n--b",
            "--b\r\n\r\nx\r\n--b-",
            "--b\r\n\r\nx\r\n--b\r\n",
            "--b\r\n\r\nx\r\n--b--epilogue",
            "--b\r\n\r\nx\r\n--b--\r\n\r\n",
            "--b\r\n\r\nx--b--",
            "--b\r\n\r\nx\n--b--",
            "--b\n\r\nx\r\n--b--",
            "--b \r\n\r\nx\r\n--b--",
            "--b\r\n\r\nx\r\n--b \r\n\r\ny\r\n--b--",
            "--b\r\n\r\nx\r\n--bc\r\n--b--",
            "--bA: 1\r\n\r\nx\r\n--b--",
            "--b\r\n\r\nx --b y\r\n--b--",
            "--b\r\n\r\n--b--",
            "--b\r\nx\r\n--b--",
            "--b\r\nA\r\n\r\nx\r\n--b--",
            "--b\r\nA : 1\r\n\r\nx\r\n--b--",
            "--b\r\nA: 1\nB: 2\r\n\r\nx\r\n--b--",
            "--b\r\nA: 1\rB: 2\r\n\r\nx\r\n--b--",
            "--b\r\nA: 1\r\n folded\r\n\r\nx\r\n--b--",
            "preamble\r\n--b\r\n\r\nx\r\n--b--",
            "\r\n\r\n--b\r\n\r\nx\r\n--b--",
        ] {
            assert_eq!(split(body), None, "{body:?}");
        }
    }

    #[test]
    fn only_boundaries_of_the_standard_are_accepted() {
        for boundary in ["a", "a b", "----=_Part_1'()+,./:?", &"x".repeat(70)] {
            assert!(
                parts(format!("--{boundary}--").as_bytes(), boundary).is_some(),
                "{boundary:?}"
            );
        }
        for boundary in ["", " ", "a ", "a;", "a\"", "a\r\n", "ä", &"x".repeat(71)] {
            assert!(
                parts(format!("--{boundary}--").as_bytes(), boundary).is_none(),
                "{boundary:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn delimiter_is_found_where_a_plain_search_finds_it(
            boundary in "[ab-]{1,4}",
            text in "[ab-]{0,40}",
        ) {
            let delimiter = Delimiter::new(&boundary).unwrap();
            let found = delimiter.split(text.as_bytes());
            let expected = text.split_once(&delimiter.text);
            let expected = expected.map(|(before, behind)| (before.as_bytes(), behind.as_bytes()));
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn written_parts_are_read_back(
            boundary in "[0-9A-Za-z'()+_,./:=?-]{20,70}",
            written in vec(
                ("(A: [ -~]{0,8}(\r\nB-c:[ -~]{0,8})?)?", vec(any::<u8>(), 0..20)),
                0..4,
            ),
        ) {
            let mut body = Vec::new();
            for (headers, content) in &written {
                let end = if headers.is_empty() { "" } else { "\r\n" };
                body.extend_from_slice(format!("--{boundary}\r\n{headers}{end}\r\n").as_bytes());
                body.extend_from_slice(content);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
            let read = parts(&body, &boundary).unwrap();
            let read: Vec<_> = read.iter().map(|part| (part.headers, part.body)).collect();
            let written = written.iter().map(|(headers, body)| (headers.as_bytes(), &body[..]));
            prop_assert_eq!(read, written.collect::<Vec<_>>());
        }

        #[test]
        fn arbitrary_bytes_are_survived(body in vec(select(b"--b\r\n:A".as_slice()), 0..30)) {
            let _ = parts(&body, "b");
        }
    }
}
