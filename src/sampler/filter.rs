//! Temperature, top-k, top-p: which codes of one codebook stay in play, and how likely each is.

/// The settings of one filtering.
pub(super) struct Filter {
    /// Divides the logits.
    pub(super) temperature: f32,
    /// Keeps the k likeliest and ties with the last of them; 0 keeps all.
    pub(super) top_k: usize,
    /// Keeps the likeliest whose sum reaches this; 1 keeps all.
    pub(super) top_p: f32,
    /// A code that stays whatever its rank.
    pub(super) exempt: Option<u16>,
}

/// A code and its probability.
pub(super) type Candidate = (u16, f32);

/// The code with the highest logit, the lowest code on ties.
pub(super) fn likeliest(candidates: impl Iterator<Item = Candidate>) -> u16 {
    let first = (0, f32::NEG_INFINITY);
    candidates.fold(first, |best, candidate| if candidate.1 > best.1 { candidate } else { best }).0
}

/// Filters `(code, logit)` pairs into `(code, probability)` pairs, likeliest first, that add up to one.
pub(super) fn filter(candidates: impl Iterator<Item = Candidate>, filter: &Filter) -> Vec<Candidate> {
    let mut kept: Vec<Candidate> = candidates.collect();
    let exempt = kept.iter().copied().find(|&(code, _)| Some(code) == filter.exempt);
    if (1..kept.len()).contains(&filter.top_k) {
        let (_, &mut (_, kth), _) = kept.select_nth_unstable_by(filter.top_k - 1, |a, b| b.1.total_cmp(&a.1));
        kept.retain(|&(_, logit)| logit >= kth);
    }
    // Lower codes first among equals, so that the order does not depend on the selection above.
    kept.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if filter.top_p < 1.0 {
        let probabilities = softmax(&kept, filter.temperature);
        let mut mass = 0.0;
        let reached = probabilities.iter().position(|&(_, probability)| {
            mass += probability;
            mass >= filter.top_p
        });
        kept.truncate(reached.map_or(kept.len(), |last| last + 1));
    }
    if let Some(exempt) = exempt
        && !kept.iter().any(|&(code, _)| code == exempt.0)
    {
        kept.push(exempt);
    }
    softmax(&kept, filter.temperature)
}

/// Probabilities of `(code, logit)` pairs whose first has the highest logit.
fn softmax(candidates: &[Candidate], temperature: f32) -> Vec<Candidate> {
    let highest = candidates.first().map_or(0.0, |&(_, logit)| logit);
    let weight = |logit: f32| ((logit - highest) / temperature).exp();
    let sum: f32 = candidates.iter().map(|&(_, logit)| weight(logit)).sum();
    candidates.iter().map(|&(code, logit)| (code, weight(logit) / sum)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn settings(top_k: usize, top_p: f32) -> Filter {
        Filter { temperature: 1.0, top_k, top_p, exempt: None }
    }

    fn codes(kept: &[Candidate]) -> Vec<u16> {
        kept.iter().map(|&(code, _)| code).collect()
    }

    fn of(logits: &[f32]) -> impl Iterator<Item = Candidate> {
        (0..).zip(logits.iter().copied())
    }

    #[test]
    fn the_probabilities_are_those_of_the_reference() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/reference/sampler.json");
        let reference: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let cases = reference["filter"].as_array().unwrap();
        assert_eq!(cases.len(), 6);
        for case in cases {
            let number = |key: &str| case[key].as_f64().unwrap();
            let (temperature, top_p) = (number("temperature") as f32, number("top_p") as f32);
            let top_k = case["top_k"].as_u64().unwrap() as usize;
            let table = |key: &str| serde_json::from_value::<Vec<Vec<f32>>>(case[key].clone()).unwrap();
            for (logits, expected) in table("logits").into_iter().zip(table("probs")) {
                let mut probabilities = vec![0.0; logits.len()];
                for (code, probability) in filter(of(&logits), &Filter { temperature, top_k, top_p, exempt: None }) {
                    probabilities[usize::from(code)] = probability;
                }
                for (code, (found, expected)) in probabilities.iter().zip(&expected).enumerate() {
                    assert!((found - expected).abs() < 1e-6, "code {code}: {found}, expected {expected}");
                }
            }
        }
    }

    #[test]
    fn ties_with_the_last_of_top_k_stay() {
        assert_eq!(codes(&filter(of(&[1.0, 3.0, 2.0, 2.0, 0.0]), &settings(2, 1.0))), [1, 2, 3]);
    }

    #[test]
    fn top_p_keeps_the_smallest_prefix_that_reaches_it_and_always_one() {
        // Probabilities 0.5, 0.25, 0.125, 0.125.
        let logits = [4f32.ln(), 2f32.ln(), 0.0, 0.0];
        assert_eq!(codes(&filter(of(&logits), &settings(0, 0.7))), [0, 1]);
        assert_eq!(codes(&filter(of(&logits), &settings(0, 0.8))), [0, 1, 2]);
        assert_eq!(codes(&filter(of(&logits), &settings(0, 0.001))), [0]);
    }

    #[test]
    fn an_exempt_code_stays_once_and_with_its_own_weight() {
        let logits = [4f32.ln(), 2f32.ln(), 0.0, 0.0];
        let kept = filter(of(&logits), &Filter { exempt: Some(3), ..settings(1, 1.0) });
        assert_eq!(codes(&kept), [0, 3]);
        assert!((kept[1].1 - 0.2).abs() < 1e-6);
        assert_eq!(codes(&filter(of(&logits), &Filter { exempt: Some(0), ..settings(1, 1.0) })), [0]);
    }

    #[test]
    fn probabilities_add_up_to_one_even_for_huge_logits() {
        let kept = filter(of(&[1e30, -1e30, 1e30]), &settings(0, 1.0));
        assert!((kept.iter().map(|&(_, p)| p).sum::<f32>() - 1.0).abs() < 1e-6);
    }
}
