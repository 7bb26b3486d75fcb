//! Fingerprints of whole requests: pinned digests, tables of equal and different pairs, properties.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn request<'a>(content_type: &'a str, body: &'a [u8]) -> FingerprintInput<'a> {
    FingerprintInput {
        content_type,
        ..FingerprintInput::new("POST", "/", body)
    }
}

fn meaning(content_type: &str, body: impl AsRef<[u8]>) -> Fingerprint {
    Fingerprinting::Meaning.of(&request(content_type, body.as_ref()))
}

fn raw(content_type: &str, body: impl AsRef<[u8]>) -> Fingerprint {
    Fingerprinting::Raw.of(&request(content_type, body.as_ref()))
}

fn json(body: impl AsRef<[u8]>) -> Fingerprint {
    meaning("application/json", body)
}

fn multipart(boundary: &str, parts: &Form) -> Fingerprint {
    let mut body = Vec::new();
    for (name, content) in parts {
        body.extend_from_slice(
            format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n")
                .as_bytes(),
        );
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    meaning(
        &format!("multipart/form-data; boundary=\"{boundary}\""),
        body,
    )
}

#[test]
fn digests_are_those_of_records_already_stored() {
    let input = FingerprintInput {
        method: "POST",
        operation: "/orders/{id}/payments",
        path: "/orders/7/payments",
        query: "dry_run=1",
        content_type: "Application/JSON; charset=utf-8",
        body:
            br#"{"note":"caf\u00e9 \ud83d\ude00","n":[1.50e3,-0.0],"a":{"gift":false,"at":null}}"#,
    };
    let form = FingerprintInput {
        content_type: "multipart/form-data; boundary=xYz",
        body: b"--xYz\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n\
            --xYz\r\n\r\n\xff\r\n--xYz--\r\n",
        ..input
    };
    let text = FingerprintInput {
        content_type: "text/plain;Format=flowed",
        ..input
    };
    for (way, input, expected) in [
        (
            Fingerprinting::Meaning,
            input,
            "010ea0b0f9316c73f5b84f4cc625116b126678221418bdb94bcc87c9019067b58f",
        ),
        (
            Fingerprinting::Meaning,
            form,
            "01000dff985350fd6346b169859501abe0a4f72c83ec06f298aef829434bdc8616",
        ),
        (
            Fingerprinting::Meaning,
            text,
            "01d812cab4f72457b1d0981344b1871b054e0ba12493c1c0c4977858b0e5d8a352",
        ),
        (
            Fingerprinting::Meaning,
            FingerprintInput::new("POST", "/", b""),
            "01f1fd446d8e0313f474ecea4da71334bb932922b179efea0a25af9b485894ac21",
        ),
        (
            Fingerprinting::Raw,
            input,
            "024bc5837b274e5774a123556e9660bef0ddabf5200d9cc8f914778a01d9d28b82",
        ),
        (
            Fingerprinting::Raw,
            form,
            "0261d0341e1de3f3f6934aea0e2e0c4b50d5b9315e56b30059907507cda3125761",
        ),
        (
            Fingerprinting::Custom(|input| input.path.into()),
            input,
            "03b8b3b6b556887647a8e0362e4f68a4ee1ca0218aaabfc2e27e2229da7bdaec74",
        ),
    ] {
        let hex: String = way
            .of(&input)
            .as_bytes()
            .iter()
            .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
        assert_eq!(hex, expected, "{way:?} {input:?}");
    }
}

#[test]
fn every_field_is_part_of_the_fingerprint() {
    let input = FingerprintInput {
        method: "PUT",
        operation: "/{a}",
        path: "/1",
        query: "q",
        content_type: "text/plain",
        body: b"b",
    };
    let others = [
        FingerprintInput {
            method: "POST",
            ..input
        },
        FingerprintInput {
            operation: "/{b}",
            ..input
        },
        FingerprintInput {
            path: "/2",
            ..input
        },
        FingerprintInput { query: "", ..input },
        FingerprintInput {
            content_type: "",
            ..input
        },
        FingerprintInput { body: b"", ..input },
    ];
    for way in [Fingerprinting::Meaning, Fingerprinting::Raw] {
        for other in others {
            assert!(
                way.of(&input).differs_from(way.of(&other).as_bytes()),
                "{way:?} {other:?}"
            );
        }
    }
}

#[test]
fn json_texts_with_one_meaning_have_one_fingerprint() {
    for texts in [
        vec![
            r#"{"a":1,"b":[true,null]}"#,
            "\r\n{ \"b\" : [ true ,\tnull ] , \"a\" : 1 }\n",
            r#"{"\u0061":1.0,"b":[true,null]}"#,
        ],
        vec![
            "1",
            "1.0",
            "1e0",
            "10e-1",
            "0.1E+1",
            "1.000",
            "100e-2",
            "0.0000001e7",
            "1e-0",
        ],
        vec!["0", "0.0", "0e5", "0E-9"],
        vec!["-0", "-0.0", "-0e5"],
        vec![
            "123456789012345678901234567890",
            "1234567890123456789012345678.90e2",
        ],
        vec![
            r#""/\u00e9\ud83d\ude00\n""#,
            "\"\\/é😀\\u000A\"",
            r#""\u002F\u00E9\uD83D\uDE00\u000a""#,
        ],
        vec!["[]", "[ ]"],
        vec!["{}", "{\n}"],
    ] {
        for text in &texts {
            assert_eq!(json(text), json(texts[0]), "{text}");
        }
    }
}

#[test]
fn json_texts_with_different_meanings_have_different_fingerprints() {
    let texts = [
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1",
        "-1",
        "10",
        "1e1000",
        "9007199254740992",
        "9007199254740993",
        "0.1",
        "0.10000000000000001",
        "0.1000000000000000055511151231257827",
        "1e400",
        "2e400",
        "1e-400",
        "\"\"",
        "\"1\"",
        "\"null\"",
        "\"é\"",
        "\"e\u{301}\"",
        "\"\\u0000\"",
        "[]",
        "[1]",
        "[1,1]",
        "[[1],1]",
        "[1,[1]]",
        "[11]",
        "[1,2]",
        "[2,1]",
        "[null]",
        "[[]]",
        "[{}]",
        "{}",
        "{\"\":1}",
        "{\"a\":1}",
        "{\"a\":\"1\"}",
        "{\"a\":null}",
        "{\"A\":1}",
        "{\"a\":1,\"b\":2}",
        "{\"a\":2,\"b\":1}",
        "{\"a\":{\"b\":2}}",
        "{\"a\":[{\"b\":2}]}",
        "[\"a\",1]",
        "[\"a\",\"b\"]",
        "[\"ab\"]",
        "[\"\",\"ab\"]",
    ];
    for (i, one) in texts.iter().enumerate() {
        for other in &texts[..i] {
            assert!(
                json(one).differs_from(json(other).as_bytes()),
                "{one} {other}"
            );
        }
    }
}

#[test]
fn bytes_decide_where_json_is_in_doubt() {
    for (one, other) in [
        (r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#),
        (r#"{"a":1,"\u0061":1}"#, r#"{"a":1, "\u0061":1}"#),
        (r#"["\ud800"]"#, r#"[ "\ud800"]"#),
        ("\u{feff}1", "1"),
        ("", " "),
        ("{", "{ "),
        ("n", "null"),
        ("1e99999999999999999999", "1.0e99999999999999999999"),
    ] {
        assert_ne!(json(one), json(other), "{one} {other}");
        assert_eq!(json(one), json(one), "{one}");
    }
    assert_ne!(json(b"\"\xff\""), json(b"\"\xfe\""));
}

#[test]
fn media_types_are_compared_by_meaning() {
    for content_type in [
        "APPLICATION/JSON",
        "application/json; charset=utf-8",
        "application/json;charset=latin1",
    ] {
        assert_eq!(
            meaning(content_type, "[ 1 ]"),
            json("[1]"),
            "{content_type}"
        );
        assert_eq!(
            raw(content_type, "[1]"),
            raw("application/json", "[1]"),
            "{content_type}"
        );
    }
    for content_type in [
        "",
        "text/json",
        "application/a+json",
        "application/json; v=2",
        "text/plain",
        "application/json, x",
    ] {
        assert_ne!(meaning(content_type, "[1]"), json("[1]"), "{content_type}");
    }
    assert_eq!(meaning("text/json", "[ 1 ]"), meaning("text/json", "[1]"));
    assert_eq!(meaning("A/B+Json", "[ 1 ]"), meaning("a/b+json", "[1]"));
    assert_ne!(meaning("text/plain", "[ 1 ]"), meaning("text/plain", "[1]"));
    assert_ne!(
        meaning("text/plain; charset=latin1", "a"),
        meaning("text/plain", "a")
    );
    assert_ne!(meaning("not a type", "a"), meaning("Not a type", "a"));
}

#[test]
fn raw_compares_bodies_by_bytes_only() {
    assert_ne!(
        raw("application/json", "[1]"),
        raw("application/json", "[1 ]")
    );
    assert_ne!(
        raw("multipart/mixed; boundary=a", "--a--"),
        raw("multipart/mixed; boundary=b", "--b--")
    );
}

#[test]
fn bytes_decide_where_multipart_is_in_doubt() {
    let body = "--a\r\n\r\nx\r\n--a--";
    assert_eq!(
        meaning("multipart/mixed; boundary=a", body),
        meaning("Multipart/Mixed;boundary=\"a\"", format!("{body}\r\n"))
    );
    assert_ne!(
        meaning("multipart/mixed", body),
        meaning("multipart/mixed", format!("{body}\r\n"))
    );
    assert_ne!(
        meaning("multipart/mixed; boundary=b", body),
        meaning("multipart/mixed; boundary=c", body)
    );
    assert_ne!(
        meaning("multipart/mixed; boundary=a", format!("{body}x")),
        meaning("multipart/mixed; boundary=a", body)
    );
}

#[test]
fn only_the_same_version_can_differ() {
    let one = json("1");
    let mut other = *json("2").as_bytes();
    assert!(one.differs_from(&other));
    assert!(!one.differs_from(one.as_bytes()));
    assert!(!one.differs_from(raw("application/json", "1").as_bytes()));
    assert!(!one.differs_from(&[]));
    assert!(!one.differs_from(&other[..32]));
    assert!(!one.differs_from(&[other.as_slice(), &[0]].concat()));
    other[0] = 9;
    assert!(!one.differs_from(&other));
}

#[test]
fn custom_fingerprint_depends_on_the_returned_bytes_only() {
    let by_path = Fingerprinting::Custom(|input| input.path.as_bytes().to_vec());
    let one = by_path.of(&FingerprintInput::new("POST", "/1", b"a"));
    assert_eq!(
        one,
        by_path.of(&FingerprintInput {
            query: "x",
            ..FingerprintInput::new("PUT", "/1", b"b")
        })
    );
    assert!(
        one.differs_from(
            by_path
                .of(&FingerprintInput::new("POST", "/2", b"a"))
                .as_bytes()
        )
    );
    assert_eq!(one.as_bytes()[0], 3);
}

#[test]
fn debug_output_shows_four_bytes_of_the_digest_and_no_content() {
    let digest = Fingerprint(std::array::from_fn(|i| u8::try_from(i).unwrap() + 1));
    assert_eq!(format!("{digest:?}"), "Fingerprint(1:02030405..)");
    let input = FingerprintInput {
        operation: "/{id}",
        query: "s3cret",
        ..FingerprintInput::new("POST", "/s3cret", b"s3cret")
    };
    assert_eq!(
        format!("{input:?}"),
        "FingerprintInput { method: \"POST\", operation: \"/{id}\", body: 6, .. }"
    );
}

type Form = Vec<(String, Vec<u8>)>;

/// Two forms of few parts and bytes, so that they are often equal.
fn any_two_of_few() -> impl Strategy<Value = (Form, Form)> {
    let form = vec(("[ab]{0,1}", vec(0..2_u8, 0..2)), 0..3);
    (form.clone(), form)
}

proptest! {
    #[test]
    fn bytes_moved_between_fields_change_the_fingerprint(
        text in "[ab]{0,8}",
        cuts in vec((0..9_usize, 0..9_usize), 5),
    ) {
        let split = |mut cuts: Vec<usize>| {
            cuts.sort_unstable();
            let mut rest = text.as_str();
            let mut fields = cuts.iter().rev().map(|&cut| {
                let (front, field) = rest.split_at(cut.min(rest.len()));
                rest = front;
                field
            });
            let [body, content_type, query, path, route] =
                std::array::from_fn(|_| fields.next().unwrap());
            (rest, route, path, query, content_type, body)
        };
        let digest = |(method, route, path, query, content_type, body): (_, _, _, _, _, &str)| {
            let body = body.as_bytes();
            let input = FingerprintInput { method, operation: route, path, query, content_type, body };
            Fingerprinting::Meaning.of(&input)
        };
        let (one, other) = cuts.into_iter().unzip();
        let (one, other) = (split(one), split(other));
        prop_assert_eq!(digest(one) == digest(other), one == other);
    }

    #[test]
    fn multipart_forms_share_a_fingerprint_exactly_if_their_parts_are_equal(
        boundary in "[0-9A-Za-z'()+_,./:=?-]{24,70}",
        another in "[0-9A-Za-z'()+_,./:=?-]{24,70}",
        form in vec(("[ab]{0,1}", vec(any::<u8>(), 0..2)), 0..4),
        forms in any_two_of_few(),
    ) {
        prop_assert_eq!(multipart(&boundary, &form), multipart(&another, &form));
        let same = multipart(&boundary, &forms.0) == multipart(&another, &forms.1);
        prop_assert_eq!(same, forms.0 == forms.1);
    }

    #[test]
    fn arbitrary_requests_are_survived(
        content_type in prop_oneof![
            "[ -~]{0,40}",
            "(application/json|multipart/x; boundary=a)(;[a-c=\"; ]{0,6})?",
        ],
        body in prop_oneof![
            vec(any::<u8>(), 0..64),
            vec(select(b"[]{}\",:\\u0d8e-.tn1 \r\na".as_slice()), 0..16),
        ],
    ) {
        let digest = meaning(&content_type, &body);
        prop_assert_eq!(digest, meaning(&content_type, body));
    }
}
