//! JSON by meaning: a strict RFC 8259 reader that sees neither member order nor notation.

use std::io::Write;
use std::ops::Range;

/// How deep arrays and objects may be nested.
const MAX_DEPTH: usize = 128;

/// How many runs there is room for at first.
const RUNS: usize = 64;

/// How much longer than the text the encoding may be at first, in bytes.
const SLACK: usize = 64 << 10;

/// A JSON text in canonical form: the same bytes for equal values, others for different ones.
///
/// A literal is one letter. A number is its exact decimal value: sign, digits without zeros at
/// either end, `e` and a power of ten unless that is 0, semicolon. A string is a quote, its length
/// (64 bits, big-endian) and its text. Arrays and objects stand in brackets, members sorted by
/// name. No code is the beginning of another, so two values never share a sequence of bytes.
pub(super) struct CanonicalJson {
    /// The codes in the order of the text.
    encoded: Vec<u8>,
    /// What to read in which order. Sorting members relinks runs and moves no bytes, so its cost
    /// does not grow with the depth.
    runs: Vec<Run>,
}

/// A stretch of the encoding, up to the start of the next one in the text.
struct Run {
    start: usize,
    /// The index of the run that follows in canonical order.
    successor: usize,
}

impl CanonicalJson {
    /// Parses a whole body; `None` where its meaning is in doubt.
    ///
    /// That is where it is not valid JSON in UTF-8, names a member twice, holds half a surrogate
    /// pair, nests deeper than 128 levels, or has an exponent beyond 64 bits.
    pub(super) fn parse(body: &[u8]) -> Option<Self> {
        let mut reader = Reader {
            rest: str::from_utf8(body).ok()?.as_bytes(),
            output: Self {
                // The codes of small values are longer than their texts.
                encoded: Vec::with_capacity(body.len() + body.len().min(SLACK)),
                runs: Vec::with_capacity(RUNS),
            },
            members: Vec::new(),
        };
        reader.output.begin_run();
        reader.value(MAX_DEPTH)?;
        reader.peek().is_none().then_some(reader.output)
    }

    /// Iterates over the canonical form; where one slice ends and the next begins means nothing.
    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut index = 0;
        std::iter::from_fn(move || {
            let start = self.runs.get(index)?.start;
            // Runs that follow each other in the text as well are one slice.
            while let Some(run) = self.runs.get(index) {
                index += 1;
                if run.successor != index {
                    let next = self.runs.get(index);
                    let end = next.map_or(self.encoded.len(), |next| next.start);
                    index = run.successor;
                    return self.encoded.get(start..end);
                }
            }
            self.encoded.get(start..)
        })
    }

    fn begin_run(&mut self) -> usize {
        let index = self.runs.len();
        self.runs.push(Run {
            start: self.encoded.len(),
            successor: index + 1,
        });
        index
    }
}

/// Reads the text from front to back; every method takes what it reads off `rest`.
struct Reader<'a> {
    rest: &'a [u8],
    output: CanonicalJson,
    /// The members so far of all objects that are still open, innermost last.
    members: Vec<Member>,
}

struct Member {
    /// The decoded name, as a range of the encoding.
    name: Range<usize>,
    first_run: usize,
    last_run: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Option<()> {
        match self.peek()? {
            b'{' => self.object(depth.checked_sub(1)?),
            b'[' => self.array(depth.checked_sub(1)?),
            b'"' => self.string().map(drop),
            b'n' => self.literal(b"null"),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            _ => self.number(),
        }
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        self.punctuation(b'{')?;
        self.output.encoded.push(b'{');
        if self.peek()? != b'}' {
            let outer = self.members.len();
            self.member(depth)?;
            while self.punctuation(b',').is_some() {
                self.member(depth)?;
            }
            self.sort_members(outer)?;
        }
        self.punctuation(b'}')?;
        self.output.encoded.push(b'}');
        Some(())
    }

    fn member(&mut self, depth: usize) -> Option<()> {
        let first_run = self.output.begin_run();
        self.peek()?;
        let name = self.string()?;
        self.punctuation(b':')?;
        self.value(depth)?;
        self.members.push(Member {
            name,
            first_run,
            last_run: self.output.runs.len() - 1,
        });
        Some(())
    }

    /// Links the members from `outer` on by name, between the run before them and a new one.
    fn sort_members(&mut self, outer: usize) -> Option<()> {
        let CanonicalJson { encoded, runs } = &mut self.output;
        let name = |member: &Member| encoded.get(member.name.clone());
        let members = self.members.get_mut(outer..)?;
        let mut previous = members.first()?.first_run.checked_sub(1)?;
        members.sort_unstable_by(|one, other| name(one).cmp(&name(other)));
        if members
            .windows(2)
            .any(|pair| matches!(pair, [a, b] if name(a) == name(b)))
        {
            return None;
        }
        for member in members {
            runs.get_mut(previous)?.successor = member.first_run;
            previous = member.last_run;
        }
        self.members.truncate(outer);
        let behind = self.output.begin_run();
        self.output.runs.get_mut(previous)?.successor = behind;
        Some(())
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        self.punctuation(b'[')?;
        self.output.encoded.push(b'[');
        if self.peek()? != b']' {
            self.value(depth)?;
            while self.punctuation(b',').is_some() {
                self.value(depth)?;
            }
        }
        self.punctuation(b']')?;
        self.output.encoded.push(b']');
        Some(())
    }

    /// Writes the code of a string and returns where its text stands in the encoding.
    fn string(&mut self) -> Option<Range<usize>> {
        self.take(b"\"")?;
        self.output.encoded.extend_from_slice(b"\"\0\0\0\0\0\0\0\0");
        let start = self.output.encoded.len();
        loop {
            let end = self
                .rest
                .iter()
                .position(|byte| matches!(byte, b'"' | b'\\' | ..=0x1f))?;
            let plain = self.split_off(end)?;
            self.output.encoded.extend_from_slice(plain);
            if self.take(b"\"").is_some() {
                break;
            }
            let character = self.escape()?;
            self.output
                .encoded
                .extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
        let end = self.output.encoded.len();
        let length = self.output.encoded.get_mut(start.checked_sub(8)?..start)?;
        length.copy_from_slice(&((end - start) as u64).to_be_bytes());
        Some(start..end)
    }

    fn escape(&mut self) -> Option<char> {
        self.take(b"\\")?;
        let &[kind] = self.split_off(1)? else {
            return None;
        };
        Some(match kind {
            b'"' | b'\\' | b'/' => char::from(kind),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => match self.code_unit()? {
                high @ 0xd800..=0xdbff => {
                    self.take(b"\\u")?;
                    let low @ 0xdc00..=0xdfff = self.code_unit()? else {
                        return None;
                    };
                    char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00))?
                }
                // Refuses the low half of a pair.
                unit => char::from_u32(unit)?,
            },
            _ => return None,
        })
    }

    fn code_unit(&mut self) -> Option<u32> {
        let mut digits = self.split_off(4)?.iter();
        digits.try_fold(0, |unit, &digit| {
            Some(unit * 16 + char::from(digit).to_digit(16)?)
        })
    }

    fn number(&mut self) -> Option<()> {
        let sign = if self.take(b"-").is_some() {
            b'-'
        } else {
            b'+'
        };
        let whole = self.digits()?;
        if whole.len() > 1 && whole.starts_with(b"0") {
            return None;
        }
        let fraction = if self.take(b".").is_some() {
            self.digits()?
        } else {
            b""
        };
        let has_exponent = self.take(b"e").or_else(|| self.take(b"E")).is_some();
        let exponent = if has_exponent { self.exponent()? } else { 0 };

        let encoded = &mut self.output.encoded;
        encoded.push(sign);
        let start = encoded.len();
        encoded.extend(
            whole
                .iter()
                .chain(fraction)
                .skip_while(|&&digit| digit == b'0'),
        );
        let all = encoded.len();
        while encoded.len() > start && encoded.last() == Some(&b'0') {
            encoded.pop();
        }
        if encoded.len() > start {
            let dropped = i64::try_from(all - encoded.len()).ok()?;
            let places = i64::try_from(fraction.len()).ok()?;
            let power = exponent.checked_add(dropped)?.checked_sub(places)?;
            if power != 0 {
                write!(encoded, "e{power}").ok()?;
            }
        }
        encoded.push(b';');
        Some(())
    }

    fn exponent(&mut self) -> Option<i64> {
        let negative = self.take(b"-").is_some();
        if !negative {
            self.take(b"+");
        }
        let mut digits = self.digits()?.iter().map(|digit| i64::from(digit - b'0'));
        let size = digits.try_fold(0_i64, |size, digit| {
            size.checked_mul(10)?.checked_add(digit)
        })?;
        Some(if negative { -size } else { size })
    }

    /// Takes one digit or more.
    fn digits(&mut self) -> Option<&'a [u8]> {
        let end = self.rest.iter().position(|byte| !byte.is_ascii_digit());
        let digits = self.split_off(end.unwrap_or(self.rest.len()))?;
        (!digits.is_empty()).then_some(digits)
    }

    /// Takes `null`, `true` or `false`, whose code is the first letter.
    fn literal(&mut self, literal: &[u8]) -> Option<()> {
        self.take(literal)?;
        self.output.encoded.extend(literal.first());
        Some(())
    }

    fn punctuation(&mut self, byte: u8) -> Option<()> {
        self.peek()?;
        self.take(&[byte])
    }

    /// Skips white space and returns the byte behind it.
    fn peek(&mut self) -> Option<u8> {
        loop {
            match self.rest {
                [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] => self.rest = rest,
                rest => return rest.first().copied(),
            }
        }
    }

    fn take(&mut self, prefix: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(prefix)?;
        Some(())
    }

    fn split_off(&mut self, length: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(front)
    }
}

#[cfg(test)]
mod tests;
