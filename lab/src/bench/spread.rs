//! The least, the middle and the greatest of some figures.

use std::fmt;

/// Says how far figures of the same thing lie apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) min: f64,
    pub(super) median: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Looks at all figures; of none, all three are NaN.
    pub(super) fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut figures: Vec<_> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        let at = |index: usize| figures.get(index).copied().unwrap_or(f64::NAN);
        Self {
            min: at(0),
            median: at(figures.len() / 2),
            max: at(figures.len().saturating_sub(1)),
        }
    }
}

/// The middle one, with the others behind it.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, median, max } = self;
        write!(f, "{median:.2} ({min:.2}–{max:.2})")
    }
}
