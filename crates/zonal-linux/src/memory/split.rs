//! Splits a number of units into shares that are proportional to weights.

/// Splits `total` units into one part for each of `weights`, in proportion to the weights.
///
/// The function rounds each part down. It then adds one unit to each of the parts with the largest remainders until all
/// units are assigned; of equal remainders, the first comes first. Finally, it moves units from the largest parts to
/// parts that are zero although their weight is positive.
///
/// Returns `None` if there are fewer units than positive weights, or if no weight is positive.
///
/// Invariant: the sum of the parts is `total`, and a part is zero exactly if its weight is zero.
pub(super) fn split(total: u64, weights: &[u64]) -> Option<Vec<u64>> {
    let sum: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    let weighted = weights.iter().filter(|&&weight| weight > 0).count() as u64;
    if weighted == 0 || total < weighted {
        return None;
    }
    let exact = |weight: u64| u128::from(total) * u128::from(weight);
    let mut parts: Vec<u64> = weights.iter().map(|&weight| (exact(weight) / sum) as u64).collect();
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by_key(|&at| std::cmp::Reverse(exact(weights[at]) % sum));
    let left = total - parts.iter().sum::<u64>();
    for &at in by_remainder.iter().take(left as usize) {
        parts[at] += 1;
    }
    while let Some(empty) = (0..parts.len()).find(|&at| parts[at] == 0 && weights[at] > 0) {
        let largest = (0..parts.len()).max_by_key(|&at| parts[at])?;
        parts[largest] -= 1;
        parts[empty] += 1;
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_is_proportional_and_exact() {
        assert_eq!(split(10, &[1, 1, 1]), Some(vec![4, 3, 3]));
        assert_eq!(split(100, &[3, 0, 1]), Some(vec![75, 0, 25]));
        assert_eq!(split(7, &[u64::MAX, u64::MAX]), Some(vec![4, 3]));
    }

    #[test]
    fn every_positive_weight_gets_a_unit() {
        assert_eq!(split(5, &[1_000_000, 1, 1]), Some(vec![3, 1, 1]));
        assert_eq!(split(2, &[1, 1, 1]), None);
        assert_eq!(split(2, &[0, 0]), None);
    }

    #[test]
    fn parts_add_up_for_all_weights() {
        for total in 0..200 {
            for weights in [[1, 2, 3, 4], [0, 9, 1, 0], [77, 77, 77, 1], [0, 0, 0, 5]] {
                let Some(parts) = split(total, &weights) else { continue };
                assert_eq!(parts.iter().sum::<u64>(), total);
                assert!(parts.iter().zip(weights).all(|(&part, weight)| (part == 0) == (weight == 0)));
            }
        }
    }
}
