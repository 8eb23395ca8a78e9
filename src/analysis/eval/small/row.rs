//! A row of a small base: the log-probabilities of the most likely tokens in a few bits, what the
//! others have in sum, and a sample of these, drawn by their probabilities.

use half::f16;

use crate::eval::base::Norm;

/// Probability of all tokens that are left out of a row although there would be room for them.
const NEGLIGIBLE: f64 = 1e-7;

/// Size of the rows to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSize {
    /// Largest number of tokens in a row, at least 1.
    pub top: usize,
    /// Bits of a log-probability, 8 to 16.
    pub bits: u32,
}

impl RowSize {
    /// Returns how many of the other tokens are drawn: a quarter as many, from 8 to 256.
    fn samples(self) -> usize {
        (self.top / 4).clamp(8, 256)
    }
}

/// A row as it is read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SmallRow {
    /// Most likely token.
    pub(super) argmax: u32,
    /// Log-probability of the text's token.
    pub(super) ln_target: f32,
    /// Probability of all tokens that are not in the row.
    pub(super) rest: f64,
    /// Σ p ln p over these.
    pub(super) rest_entropy: f64,
    /// Log-probability that none of these exceeds.
    pub(super) ln_most: f64,
    /// Bound on the error of a log-probability in the row.
    pub(super) rounding: f64,
    /// Ids in ascending order, and their log-probabilities.
    pub(super) tokens: Vec<(u32, f64)>,
    /// Tokens that were drawn from the others, each as often as it was drawn.
    pub(super) sample: Vec<(u32, f64)>,
}

/// Bytes of a row before its ids: their number, the most likely token, and five numbers.
const HEAD: usize = 2 * 4 + 5 * 4;

/// Encodes the predictions of a row of logits, of which `target` is the token that follows.
pub(super) fn encode(logits: &[f32], target: usize, size: RowSize) -> Vec<u8> {
    let norm = Norm::of(logits);
    let chosen = most_likely(logits, &norm, size.top);
    let (mut rest, mut rest_entropy) = (0.0, 0.0);
    each_other(logits, &norm, &chosen, |_, ln_p| {
        rest += ln_p.exp();
        rest_entropy += ln_p.exp() * ln_p;
    });
    let ln = |id: &u32| norm.ln_p(logits[*id as usize]) as f32;
    let ends = chosen.iter().map(ln);
    let (low, high) = ends.fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), x| {
        (low.min(x), high.max(x))
    });
    let mut out = Vec::with_capacity(HEAD + 4 * chosen.len());
    out.extend((chosen.len() as u32).to_le_bytes());
    out.extend((norm.argmax as u32).to_le_bytes());
    // the most likely of the others is at most the least likely of these, whatever it is rounded to
    let numbers = [
        norm.ln_p(logits[target]) as f32,
        low,
        high,
        rest as f32,
        rest_entropy as f32,
    ];
    out.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
    let mut last = 0;
    for &id in &chosen {
        put_varint(&mut out, id - last);
        last = id;
    }
    let codes = chosen.iter().map(|id| {
        let share = (f64::from(ln(id)) - f64::from(low)) / step(low, high, size.bits);
        share.round().clamp(0.0, f64::from(most(size.bits))) as u32
    });
    pack(&mut out, codes, size.bits);
    let sample = match rest < NEGLIGIBLE {
        true => Vec::new(),
        false => draw(logits, &norm, &chosen, rest, size.samples()),
    };
    put_varint(&mut out, sample.len() as u32);
    let mut last = 0;
    for &(id, ln_p) in &sample {
        put_varint(&mut out, id - last);
        out.extend(f16::from_f64(ln_p).to_le_bytes());
        last = id;
    }
    out
}

/// Calls `visit` with each token that is not among the chosen ones, and its log-probability.
fn each_other(logits: &[f32], norm: &Norm, chosen: &[u32], mut visit: impl FnMut(u32, f64)) {
    let mut next = chosen.iter().copied().peekable();
    for (id, &logit) in (0u32..).zip(logits) {
        if next.next_if_eq(&id).is_none() {
            visit(id, norm.ln_p(logit));
        }
    }
}

/// Draws `n` of the other tokens, each as likely as it is: at even distances along the sum of their
/// probabilities, from a beginning that depends on the row.
fn draw(logits: &[f32], norm: &Norm, chosen: &[u32], rest: f64, n: usize) -> Vec<(u32, f64)> {
    let step = rest / n as f64;
    // digits that say nothing about the row
    let mut next = step * (norm.ln_sum * 1e6).fract().abs();
    let (mut sum, mut sample) = (0.0, Vec::with_capacity(n));
    each_other(logits, norm, chosen, |id, ln_p| {
        sum += ln_p.exp();
        while next < sum && sample.len() < n {
            sample.push((id, ln_p));
            next += step;
        }
    });
    sample
}

/// Returns the ids of the most likely tokens in ascending order: at most `top`, and no more than
/// are needed for all but a negligible probability.
fn most_likely(logits: &[f32], norm: &Norm, top: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let descending = |a: &u32, b: &u32| {
        let [a_logit, b_logit] = [a, b].map(|id| logits[*id as usize]);
        b_logit.total_cmp(&a_logit).then(a.cmp(b))
    };
    if top < ids.len() {
        ids.select_nth_unstable_by(top, descending);
        ids.truncate(top.max(1));
    }
    ids.sort_unstable_by(descending);
    let mut left = 1.0;
    let needed = ids.iter().position(|id| {
        left -= norm.ln_p(logits[*id as usize]).exp();
        left < NEGLIGIBLE
    });
    ids.truncate(needed.map_or(ids.len(), |last| last + 1));
    ids.sort_unstable();
    ids
}

/// Returns the highest code.
fn most(bits: u32) -> u32 {
    (1 << bits) - 1
}

/// Returns the distance of two codes.
fn step(low: f32, high: f32, bits: u32) -> f64 {
    let span = f64::from(high) - f64::from(low);
    match span > 0.0 {
        true => span / f64::from(most(bits)),
        // one token, or equal ones: every code is 0
        false => 1.0,
    }
}

fn put_varint(out: &mut Vec<u8>, mut n: u32) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Appends codes of some bits each, the lowest bits first.
fn pack(out: &mut Vec<u8>, codes: impl Iterator<Item = u32>, bits: u32) {
    let (mut word, mut filled) = (0u64, 0);
    for code in codes {
        word |= u64::from(code) << filled;
        filled += bits;
        while filled >= 8 {
            out.push(word as u8);
            word >>= 8;
            filled -= 8;
        }
    }
    if filled > 0 {
        out.push(word as u8);
    }
}

/// Reads the next bytes of a file.
pub(super) trait Bytes {
    /// Why bytes cannot be read.
    type Error;
    /// Reads a byte.
    fn byte(&mut self) -> Result<u8, Self::Error>;
    /// Makes the error of a value that is not as it should be.
    fn wrong(&self, what: &'static str, got: String) -> Self::Error;
}

fn number<B: Bytes>(from: &mut B) -> Result<u32, B::Error> {
    let mut bytes = [0; 4];
    for byte in &mut bytes {
        *byte = from.byte()?;
    }
    Ok(u32::from_le_bytes(bytes))
}

fn float<B: Bytes>(from: &mut B, what: &'static str) -> Result<f32, B::Error> {
    let x = f32::from_bits(number(from)?);
    match x.is_finite() {
        true => Ok(x),
        false => Err(from.wrong(what, x.to_string())),
    }
}

fn varint<B: Bytes>(from: &mut B) -> Result<u32, B::Error> {
    let mut n = 0u64;
    for i in 0..5 {
        let byte = from.byte()?;
        n |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            break;
        }
    }
    u32::try_from(n).map_err(|_| from.wrong("the distance of two ids", n.to_string()))
}

impl SmallRow {
    /// Reads a row, for a vocabulary of `n_vocab` tokens.
    pub(super) fn read<B: Bytes>(
        from: &mut B,
        n_vocab: usize,
        bits: u32,
    ) -> Result<SmallRow, B::Error> {
        let n = number(from)? as usize;
        if !(1..=n_vocab).contains(&n) {
            return Err(from.wrong("the number of tokens", n.to_string()));
        }
        let argmax = number(from)?;
        let ln_target = float(from, "the log-probability of the text's token")?;
        let low = float(from, "the lowest log-probability")?;
        let high = float(from, "the highest log-probability")?;
        let rest = float(from, "the probability of the other tokens")?;
        let rest_entropy = float(from, "the entropy of the other tokens")?;
        let is_sound = ln_target <= 0.01 && low <= high && high <= 0.01;
        if !is_sound || !(0.0..=1.0).contains(&rest) {
            return Err(from.wrong("probabilities", format!("{low} to {high}, {rest} besides")));
        }
        // the lengths of the rows say how much memory they take: no more than was read
        let (mut ids, mut last) = (Vec::new(), 0);
        for i in 0..n {
            let id = varint(from)?.saturating_add(last);
            if id as usize >= n_vocab || (i > 0 && id == last) {
                return Err(from.wrong("ascending ids of the vocabulary", id.to_string()));
            }
            ids.push(id);
            last = id;
        }
        if argmax as usize >= n_vocab {
            return Err(from.wrong("the most likely token", argmax.to_string()));
        }
        let step = step(low, high, bits);
        let mut codes = Vec::with_capacity(n);
        let (mut word, mut filled) = (0u64, 0);
        for _ in 0..n {
            while filled < bits {
                word |= u64::from(from.byte()?) << filled;
                filled += 8;
            }
            codes.push(f64::from(low) + step * f64::from(word as u32 & most(bits)));
            word >>= bits;
            filled -= bits;
        }
        let sample = read_sample(from, n_vocab)?;
        // the rounded probabilities sum to what they did before
        let sum: f64 = codes.iter().map(|ln_p| ln_p.exp()).sum();
        let shift = ((1.0 - f64::from(rest)).max(f64::MIN_POSITIVE) / sum).ln();
        Ok(SmallRow {
            argmax,
            ln_target,
            rest: rest.into(),
            rest_entropy: rest_entropy.into(),
            ln_most: low.into(),
            sample,
            rounding: if n > 1 {
                step / 2.0 + shift.abs()
            } else {
                shift.abs()
            },
            tokens: ids
                .into_iter()
                .zip(codes)
                .map(|(id, ln_p)| (id, ln_p + shift))
                .collect(),
        })
    }
}

/// Reads the tokens that were drawn from the others.
fn read_sample<B: Bytes>(from: &mut B, n_vocab: usize) -> Result<Vec<(u32, f64)>, B::Error> {
    let (mut sample, mut id) = (Vec::new(), 0u32);
    for _ in 0..varint(from)? {
        id = id.saturating_add(varint(from)?);
        let ln_p = f16::from_le_bytes([from.byte()?, from.byte()?]).to_f64();
        if id as usize >= n_vocab || !(f64::NEG_INFINITY..=0.01).contains(&ln_p) {
            return Err(from.wrong("tokens that were drawn", format!("{id} with {ln_p}")));
        }
        sample.push((id, ln_p));
    }
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Slice<'a>(&'a [u8]);

    impl Bytes for Slice<'_> {
        type Error = String;

        fn byte(&mut self) -> Result<u8, String> {
            let (first, rest) = self.0.split_first().ok_or("the end")?;
            self.0 = rest;
            Ok(*first)
        }

        fn wrong(&self, what: &'static str, got: String) -> String {
            format!("{what}: {got}")
        }
    }

    fn logits(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919) % 1000) as f32 / 70.0).collect()
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let logits = logits(3000);
        let norm = Norm::of(&logits);
        for (top, bits) in [(1, 8), (7, 11), (300, 16), (5000, 12)] {
            let bytes = encode(&logits, 5, RowSize { top, bits });
            let mut from = Slice(&bytes);
            let row = SmallRow::read(&mut from, 3000, bits).expect("a row");
            assert!(from.0.is_empty());
            assert!(row.tokens.len() <= top && row.argmax as usize == norm.argmax);
            assert!((f64::from(row.ln_target) - norm.ln_p(logits[5])).abs() < 1e-5);
            let sum: f64 = row.tokens.iter().map(|(_, ln_p)| ln_p.exp()).sum();
            assert!(
                (sum + row.rest - 1.0).abs() < 1e-6,
                "{sum} and {}",
                row.rest
            );
            for (id, ln_p) in &row.tokens {
                let error = (ln_p - norm.ln_p(logits[*id as usize])).abs();
                assert!(error <= row.rounding + 1e-6, "{bits} bits: {error}");
            }
            let samples = RowSize { top, bits }.samples();
            assert_eq!(row.sample.len(), if row.rest > 1e-7 { samples } else { 0 });
            for (id, ln_p) in &row.sample {
                assert!((ln_p - norm.ln_p(logits[*id as usize])).abs() < 0.01);
                assert!(row.tokens.iter().all(|(one, _)| one != id));
            }
            let mut others = (0..3000).filter(|id| row.tokens.iter().all(|(one, _)| one != id));
            let most = row.ln_most + 1e-5;
            assert!(others.all(|id| norm.ln_p(logits[id as usize]) <= most));
            for cut in 0..bytes.len() {
                assert!(SmallRow::read(&mut Slice(&bytes[..cut]), 3000, bits).is_err());
            }
        }
    }

    #[test]
    fn rows_that_are_no_rows_are_refused() {
        let bytes = encode(&logits(100), 5, RowSize { top: 10, bits: 8 });
        let error = |at: usize, with: [u8; 4]| {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].copy_from_slice(&with);
            SmallRow::read(&mut Slice(&bytes), 100, 8).unwrap_err()
        };
        assert_eq!(error(0, [101, 0, 0, 0]), "the number of tokens: 101");
        assert_eq!(error(4, [100, 0, 0, 0]), "the most likely token: 100");
        assert!(error(8, f32::NAN.to_le_bytes()).ends_with("text's token: NaN"));
        assert!(error(12, 3f32.to_le_bytes()).starts_with("probabilities: 3 to"));
        assert!(error(20, 2f32.to_le_bytes()).ends_with("2 besides"));
        assert!(error(HEAD, [0xff; 4]).starts_with("ascending ids of the vocabulary"));
    }
}
