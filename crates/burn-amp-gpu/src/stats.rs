//! Figures from times.

use std::time::Duration;

/// The median; of an even number of times, the mean of the two in the middle.
///
/// # Panics
///
/// If there are none.
pub fn median(times: &[Duration]) -> Duration {
    assert!(!times.is_empty(), "the median of no times");
    let mut times = times.to_vec();
    times.sort_unstable();
    let middle = times.len() / 2;
    if times.len() % 2 == 1 {
        times[middle]
    } else {
        (times[middle - 1] + times[middle]) / 2
    }
}

/// How often to run what takes `once`, so that it takes about `target`.
pub fn repetitions(once: Duration, target: Duration, most: usize) -> usize {
    let once = once.max(Duration::from_nanos(100));
    let fit = target.as_nanos() / once.as_nanos();
    (fit as usize).clamp(1, most)
}

/// 10¹² floating-point operations a second: a product has two for each of its multiplications.
pub fn tflops([m, k, n]: [usize; 3], time: Duration) -> f64 {
    2.0 * m as f64 * k as f64 * n as f64 / time.as_secs_f64() / 1e12
}

/// 10⁹ bytes a second.
pub fn gb_per_second(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / 1e9
}

/// Whether the last two times are so close that caches, compilers and tuners have settled.
pub fn has_settled(times: &[Duration]) -> bool {
    match times {
        [.., before, last] => {
            let [before, last] = [before, last].map(Duration::as_secs_f64);
            (before - last).abs() <= 0.15 * last
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(times: &[u64]) -> Vec<Duration> {
        times.iter().copied().map(Duration::from_millis).collect()
    }

    #[test]
    fn should_take_the_middle_in_any_order() {
        assert_eq!(median(&millis(&[9, 1, 5])), Duration::from_millis(5));
        assert_eq!(median(&millis(&[9, 1, 5, 3])), Duration::from_millis(4));
        assert_eq!(median(&millis(&[7])), Duration::from_millis(7));
    }

    #[test]
    #[should_panic(expected = "the median of no times")]
    fn should_refuse_no_times() {
        median(&[]);
    }

    #[test]
    fn should_repeat_what_is_short_more_often() {
        let target = Duration::from_millis(50);
        assert_eq!(repetitions(Duration::from_millis(10), target, 100), 5);
        assert_eq!(repetitions(Duration::from_micros(1), target, 100), 100);
        assert_eq!(repetitions(Duration::from_secs(1), target, 100), 1);
        assert_eq!(repetitions(Duration::ZERO, target, 100), 100);
    }

    #[test]
    fn should_count_two_operations_a_multiplication() {
        let second = Duration::from_secs(1);
        assert_eq!(tflops([1000, 1000, 1000], second), 0.002);
        assert_eq!(gb_per_second(3_000_000_000, second), 3.0);
    }

    #[test]
    fn should_settle_on_two_times_alike() {
        assert!(!has_settled(&millis(&[100])));
        assert!(!has_settled(&millis(&[900, 100])));
        assert!(has_settled(&millis(&[900, 100, 110])));
    }
}
