//! How much time is left: GPU time is often paid by the minute.

use std::time::{Duration, Instant};

/// A moment at which everything has to be over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    end: Instant,
}

impl Budget {
    /// Ends this long from now.
    pub fn lasting(total: Duration) -> Self {
        Self {
            end: Instant::now() + total,
        }
    }

    /// A part of it: ends after `longest`, and never later than the whole.
    pub fn part(&self, longest: Duration) -> Self {
        self.part_from(Instant::now(), longest)
    }

    fn part_from(&self, now: Instant, longest: Duration) -> Self {
        Self {
            end: self.end.min(now + longest),
        }
    }

    /// What is left.
    pub fn left(&self) -> Duration {
        self.left_from(Instant::now())
    }

    fn left_from(&self, now: Instant) -> Duration {
        self.end.saturating_duration_since(now)
    }

    /// Whether `needed` is left.
    pub fn has(&self, needed: Duration) -> bool {
        self.left() >= needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(now: Instant, seconds: u32) -> Budget {
        Budget {
            end: now + seconds * SECOND,
        }
    }

    #[test]
    fn should_count_down_to_nothing() {
        let now = Instant::now();
        let budget = at(now, 5);
        assert_eq!(budget.left_from(now + 2 * SECOND), 3 * SECOND);
        assert_eq!(budget.left_from(now + 7 * SECOND), Duration::ZERO);
    }

    #[test]
    fn should_cut_parts_that_end_no_later_than_the_whole() {
        let now = Instant::now();
        let budget = at(now, 5);
        assert_eq!(budget.part_from(now, 2 * SECOND), at(now, 2));
        assert_eq!(budget.part_from(now + 4 * SECOND, 2 * SECOND), budget);
    }

    #[test]
    fn should_tell_whether_something_fits() {
        let budget = Budget::lasting(60 * SECOND);
        assert!(budget.has(SECOND));
        assert!(!budget.has(61 * SECOND));
    }
}
