//! Canonical JSON: codes, sorting, refused texts, and values written in many notations.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn canonical(text: impl AsRef<[u8]>) -> Option<Vec<u8>> {
    CanonicalJson::parse(text.as_ref()).map(|json| json.slices().flatten().copied().collect())
}

/// The canonical form with the lengths of its strings left out.
fn readable(text: &str) -> String {
    let bytes = canonical(text).unwrap();
    String::from_utf8(bytes)
        .unwrap()
        .replace("\0\0\0\0\0\0\0", "")
        .replace(|c: char| c < '\u{9}', "")
}

#[test]
fn codes_are_those_of_the_documentation() {
    assert_eq!(
        canonical(r#" {"b" : [ null,true , false ],"a":"\u00e9\n"} "#).unwrap(),
        b"{\"\0\0\0\0\0\0\0\x01a\"\0\0\0\0\0\0\0\x03\xc3\xa9\n\"\0\0\0\0\0\0\0\x01b[ntf]}"
    );
    assert_eq!(
        readable("[0, -0.0, 1.50, -20e+3, 1E-2, 0.001, 100]"),
        "[+;-;+15e-1;-2e4;+1e-2;+1e-3;+1e2;]"
    );
}

#[test]
fn members_are_sorted_at_every_depth() {
    assert_eq!(
        readable(r#"{"d":{},"b":{"z":[{"y":1,"x":{"v":2,"u":{}}},{"t":3}],"c":4},"a":{"s":5}}"#),
        r#"{"a{"s+5;}"b{"c+4;"z[{"x{"u{}"v+2;}"y+1;}{"t+3;}]}"d{}}"#
    );
}

#[test]
fn names_are_sorted_and_compared_without_escapes() {
    assert_eq!(
        canonical(r#"{"\u0062":1,"a":2}"#),
        canonical(r#"{"\u0061":2,"b":1}"#)
    );
    assert_eq!(canonical(r#"{"a":1,"b":2,"\u0061":3}"#), None);
    assert_eq!(canonical(r#"{"":1,"":1}"#), None);
    assert!(canonical(r#"[{"a":1},{"a":1}]"#).is_some());
    assert!(canonical(r#"{"a":{"a":1},"b":1}"#).is_some());
}

#[test]
fn doubtful_texts_are_refused() {
    let arrays = "| |nul|nulll|True|1 2|// 1|[|]|[1|[1,|[1,]|[,1]|[1 2]|[1}";
    let objects = r#"{|{}}|{"a"}|{"a":}|{"a":1,}|{,}|{a:1}|{1:1}|{"a":1 "b":2}|{"a" 1}|{"a":1]"#;
    let strings = r#"'a'|"a|"a\"|"\x"|"\u12"|"\u+123"|"\u12g4"|"\"#;
    let surrogates = r#""\ud800"|"\udc00"|"\ud800\ud800"|"\ud800\n"|"\ud800x"|"\udc00\ud800""#;
    let numbers = "NaN|Infinity|-|+1|01|-01|00|.5|5.|1.e1|1e|1e+|1e1.5|0x1|1_0|- 1|1. 5|1 e5";
    let exponents = "1e9223372036854775808|1e-9223372036854775808|10e9223372036854775807|\
                     0.01e-9223372036854775807|0e99999999999999999999";
    let characters = "\"\t\"|\"\u{1f}\"|\"\n\"|\"\0\"|\u{feff}1|1\u{a0}|1\u{c}|1\0";
    for text in [
        arrays, objects, strings, surrogates, numbers, exponents, characters,
    ]
    .iter()
    .flat_map(|texts| texts.split('|'))
    {
        assert_eq!(canonical(text), None, "{text:?}");
    }
    for text in [
        b"\"\xff\"".as_slice(),
        b"\"\xed\xa0\x80\"",
        b"\"\xc0\xaf\"",
        b"1\xff",
        b"\x001\x00",
        b"\xff\xfe1\0",
    ] {
        assert_eq!(canonical(text), None, "{text:?}");
    }
}

#[test]
fn nesting_ends_at_128_levels() {
    let nested =
        |open: &str, close: &str, depth| format!("{}1{}", open.repeat(depth), close.repeat(depth));
    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[ ", " ]")] {
        assert!(canonical(nested(open, close, 128)).is_some());
        assert_eq!(canonical(nested(open, close, 129)), None);
        assert_eq!(canonical(open.repeat(1_000_000)), None);
    }
}

/// A JSON value; equality is that of its meaning.
#[derive(Clone, Debug, PartialEq)]
enum Json {
    Literal(&'static str),
    /// Sign, coefficient without a zero at its end, power of ten.
    Number(bool, u64, i32),
    Text(String),
    Array(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

impl Json {
    fn number(negative: bool, mut coefficient: u64, mut power: i32) -> Self {
        while coefficient != 0 && coefficient.is_multiple_of(10) {
            coefficient /= 10;
            power += 1;
        }
        Self::Number(
            negative,
            coefficient,
            if coefficient == 0 { 0 } else { power },
        )
    }

    /// Values over the given texts and coefficients: the fewer there are, the more often two values
    /// are equal.
    fn strategy(
        text: &'static str,
        coefficients: RangeInclusive<u64>,
    ) -> impl Strategy<Value = Self> {
        let leaf = prop_oneof![
            select(["null", "true", "false"].as_slice()).prop_map(Self::Literal),
            (any::<bool>(), coefficients, -1..=1)
                .prop_map(|(sign, coefficient, power)| Self::number(sign, coefficient, power)),
            text.prop_map(Self::Text),
        ];
        leaf.prop_recursive(4, 24, 4, move |value| {
            prop_oneof![
                vec(value.clone(), 0..4).prop_map(Self::Array),
                btree_map(text, value, 0..4).prop_map(Self::Object)
            ]
        })
    }

    /// Writes the value in one of its notations.
    fn write(&self, dice: &mut Dice) -> String {
        let text = match self {
            Self::Literal(literal) => (*literal).to_owned(),
            Self::Number(negative, coefficient, power) => {
                write_number(*negative, *coefficient, *power, dice)
            }
            Self::Text(text) => write_text(text, dice),
            Self::Array(values) => {
                let values: Vec<_> = values.iter().map(|value| value.write(dice)).collect();
                format!("[{}{}]", dice.space(), values.join(","))
            }
            Self::Object(members) => {
                let mut members: Vec<_> = members
                    .iter()
                    .map(|(name, value)| {
                        format!(
                            "{}{}{}:{}",
                            dice.space(),
                            write_text(name, dice),
                            dice.space(),
                            value.write(dice)
                        )
                    })
                    .collect();
                for i in 1..members.len() {
                    members.swap(i, dice.roll(i + 1));
                }
                format!("{{{}{}}}", dice.space(), members.join(","))
            }
        };
        format!("{}{text}{}", dice.space(), dice.space())
    }
}

fn write_number(negative: bool, coefficient: u64, power: i32, dice: &mut Dice) -> String {
    let zeros = dice.roll(3);
    let mut digits = format!("{coefficient}{}", "0".repeat(zeros));
    if coefficient == 0 || dice.roll(3) == 0 {
        digits.insert_str(0, &"0".repeat(dice.roll(3) + 1));
    }
    // At most one zero may stand in front of the point.
    let point = if digits.starts_with('0') {
        1
    } else {
        1 + dice.roll(digits.len())
    };
    let (whole, fraction) = digits.split_at(point);
    let power = power + i32::try_from(fraction.len()).unwrap() - i32::try_from(zeros).unwrap();
    let point = if fraction.is_empty() { "" } else { "." };
    let exponent = match (power, dice.roll(4)) {
        (0, 0..=2) => String::new(),
        (0.., 0) => format!("e+{power}"),
        (_, 1) => format!("E{power:03}"),
        _ => format!("e{power}"),
    };
    format!(
        "{}{whole}{point}{fraction}{exponent}",
        if negative { "-" } else { "" }
    )
}

fn write_text(text: &str, dice: &mut Dice) -> String {
    let mut written = "\"".to_owned();
    for character in text.chars() {
        match (character, dice.roll(4)) {
            ('\n', 0) => written += "\\n",
            ('"' | '\\' | '/', 0..=2) => written.extend(['\\', character]),
            (' '.., 1..) if !matches!(character, '"' | '\\') => written.push(character),
            (_, roll) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let digits = if roll == 3 {
                        format!("{unit:04X}")
                    } else {
                        format!("{unit:04x}")
                    };
                    written.extend(["\\u", &digits]);
                }
            }
        }
    }
    written + "\""
}

/// Small choices from one seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }

    fn space(&mut self) -> &'static str {
        ["", "", "", " ", "\n", "\t\r\n "][self.roll(6)]
    }
}

proptest! {
    #[test]
    fn value_has_one_canonical_form_in_all_its_notations(
        value in Json::strategy("[ -~\n\0é😀]{0,6}", 0..=u64::MAX),
        seeds in any::<(u64, u64)>(),
    ) {
        let one = value.write(&mut Dice(seeds.0));
        let other = value.write(&mut Dice(seeds.1));
        prop_assert!(canonical(&one).is_some(), "{one}");
        prop_assert_eq!(canonical(&one), canonical(&other), "{} {}", one, other);
    }

    #[test]
    fn values_share_a_canonical_form_exactly_if_they_are_equal(
        one in Json::strategy("[a\"]{0,1}", 0..=2),
        other in Json::strategy("[a\"]{0,1}", 0..=2),
        seeds in any::<(u64, u64)>(),
    ) {
        let written = one.write(&mut Dice(seeds.0));
        let rewritten = other.write(&mut Dice(seeds.1));
        prop_assert_eq!(canonical(written) == canonical(rewritten), one == other);
    }
}
