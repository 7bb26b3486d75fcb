//! Reads the two kinds of quantities an option can hold: `"24h"` and `"1MiB"`.

/// Reads a duration such as `24h` into milliseconds.
///
/// # Errors
/// Says in one sentence what is wrong with the text, to stand behind the option's name.
pub(crate) fn milliseconds(text: &str) -> Result<u64, String> {
    quantity(text, &DURATION)
}

/// Reads a size such as `64KiB` into bytes.
///
/// # Errors
/// Says in one sentence what is wrong with the text, to stand behind the option's name.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    quantity(text, &SIZE)
}

/// A kind of quantity: its units, each with its factor.
struct Kind {
    units: &'static [(&'static str, u64)],
    example: &'static str,
    noun: &'static str,
}

const DURATION: Kind = Kind {
    units: &[
        ("ms", 1),
        ("s", 1_000),
        ("m", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
        ("w", 604_800_000),
    ],
    example: "24h",
    noun: "duration",
};

const SIZE: Kind = Kind {
    units: &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20)],
    example: "64KiB",
    noun: "size",
};

/// Units whose length depends on the calendar.
const CALENDAR: [&str; 8] = ["M", "mo", "month", "months", "y", "Y", "year", "years"];

fn quantity(text: &str, kind: &Kind) -> Result<u64, String> {
    let (number, unit) = text.split_at(
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len()),
    );
    if number.is_empty() {
        let Kind { noun, example, .. } = kind;
        return Err(format!(
            "is not a {noun}: write a whole number and a unit, like `\"{example}\"`"
        ));
    }
    let factor = factor(unit, kind)?;
    // A number of digits only can fail for one reason.
    let number: u64 = number.parse().map_err(|_| TOO_LARGE.to_owned())?;
    match number.checked_mul(factor) {
        Some(0) => Err(format!("is zero: write a {} above zero", kind.noun)),
        Some(product) => Ok(product),
        None => Err(TOO_LARGE.to_owned()),
    }
}

const TOO_LARGE: &str = "is too large to be counted";

fn factor(unit: &str, kind: &Kind) -> Result<u64, String> {
    if let Some((_, factor)) = kind.units.iter().find(|(name, _)| *name == unit) {
        return Ok(*factor);
    }
    let units = kind
        .units
        .iter()
        .map(|(name, _)| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ");
    let unit = unit.trim();
    Err(if unit.is_empty() {
        format!("has no unit: add one of {units}")
    } else if kind.units.iter().any(|(name, _)| *name == unit) {
        format!("has a space beside the unit: write `{unit}` right behind the number")
    } else if kind.noun == DURATION.noun && CALENDAR.contains(&unit) {
        "is counted in a calendar unit, which has no fixed length: write days, like `\"365d\"`"
            .to_owned()
    } else {
        format!("has the unknown unit `{unit}`: the units are {units}")
    })
}

#[cfg(test)]
mod tests {
    use super::{bytes, milliseconds};

    #[test]
    fn every_unit_is_read() {
        let durations = [
            ("500ms", 500),
            ("90s", 90_000),
            ("15m", 900_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
            ("2w", 1_209_600_000),
        ];
        for (text, expected) in durations {
            assert_eq!(milliseconds(text), Ok(expected), "{text}");
        }
        for (text, expected) in [("500B", 500), ("64KiB", 65_536), ("1MiB", 1_048_576)] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn unknown_unit_is_answered_with_the_list_of_units() {
        for text in ["24hours", "1 day", "1h30m", "1.5h", "5µs", "7D"] {
            let message = milliseconds(text).unwrap_err();
            assert!(
                message.ends_with("the units are `ms`, `s`, `m`, `h`, `d`, `w`"),
                "{text}: {message}"
            );
        }
        for text in ["24 h", "24h "] {
            let message = milliseconds(text).unwrap_err();
            assert!(message.contains("write `h` right behind"), "{message}");
        }
        let message = bytes("64KB").unwrap_err();
        assert_eq!(
            message,
            "has the unknown unit `KB`: the units are `B`, `KiB`, `MiB`"
        );
    }

    #[test]
    fn calendar_units_are_refused_with_days_as_the_remedy() {
        for text in ["1M", "2mo", "1y", "3years"] {
            assert!(
                milliseconds(text).unwrap_err().contains("calendar unit"),
                "{text}"
            );
        }
        assert!(bytes("1M").unwrap_err().contains("unknown unit"));
    }

    #[test]
    fn zero_overflow_and_missing_parts_are_refused() {
        let faults = [
            ("0s", "is zero"),
            ("0ms", "is zero"),
            ("99999999999999999999s", "too large"),
            ("18446744073709551615s", "too large"),
            ("60", "has no unit"),
            ("", "is not a duration"),
            ("h", "is not a duration"),
            ("-1h", "is not a duration"),
            ("+1h", "is not a duration"),
        ];
        for (text, expected) in faults {
            let message = milliseconds(text).unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    #[test]
    fn largest_countable_values_are_read() {
        assert_eq!(milliseconds("18446744073709551615ms"), Ok(u64::MAX));
        assert_eq!(bytes("18446744073709551615B"), Ok(u64::MAX));
    }
}
