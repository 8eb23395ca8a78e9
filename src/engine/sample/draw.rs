//! The last step of the chain, which draws a token: from the softmax, or towards a target that is
//! kept from token to token.

use super::SamplerConfig;
use super::candidates::Candidates;

/// Most candidates from which Mirostat 1 estimates the exponent of Zipf's law.
const ESTIMATED_FROM: usize = 100;

/// Peak and slope of the logits of the adaptive sampler, and the distance at which they are half.
const PEAK: f64 = 5.0;
const SLOPE: f64 = 10.0;
const WIDTH: f64 = 0.3;

/// Most weight that an earlier token keeps in the adaptive sampler.
const MAX_DECAY: f64 = 0.99;

/// How a token is drawn.
#[derive(Clone, Debug)]
pub(super) enum Draw {
    /// From the softmax.
    Plain,
    Mirostat(Mirostat),
    Adaptive(Adaptive),
}

impl Draw {
    pub(super) fn new(config: &SamplerConfig, n_vocab: usize) -> Draw {
        if config.mirostat != 0 {
            Draw::Mirostat(Mirostat::new(config, n_vocab))
        } else if config.adapts() {
            Draw::Adaptive(Adaptive::new(config))
        } else {
            Draw::Plain
        }
    }

    /// Cuts down and reshapes the candidates that the token is drawn from.
    pub(super) fn prepare(&mut self, candidates: &mut Candidates) {
        match self {
            Draw::Plain => {}
            Draw::Mirostat(mirostat) => mirostat.cut(candidates),
            Draw::Adaptive(adaptive) => adaptive.reshape(candidates),
        }
    }

    /// Notes which of these candidates was drawn.
    pub(super) fn note(&mut self, candidates: &Candidates, id: u32) {
        if let Draw::Mirostat(mirostat) = self {
            mirostat.correct(candidates.logprob(id));
        }
    }

    /// Notes that a token is part of the sequence.
    pub(super) fn accept(&mut self, id: u32) {
        if let Draw::Adaptive(adaptive) = self {
            adaptive.accept(id);
        }
    }
}

/// Mirostat (Basu and others 2021): keeps the surprise of the tokens near a target.
#[derive(Clone, Debug)]
pub(super) struct Mirostat {
    version: usize,
    n_vocab: usize,
    /// Surprise to aim at, in bits.
    target: f64,
    rate: f64,
    /// Largest surprise of the next token, in bits.
    most: f64,
}

impl Mirostat {
    fn new(config: &SamplerConfig, n_vocab: usize) -> Mirostat {
        let target = f64::from(config.mirostat_tau);
        Mirostat {
            version: config.mirostat,
            n_vocab,
            target,
            rate: f64::from(config.mirostat_eta),
            most: 2.0 * target,
        }
    }

    fn cut(&self, candidates: &mut Candidates) {
        match self.version {
            1 => {
                let k = self.zipf_cut(candidates);
                if k >= candidates.size() {
                    // the order that seeds have always drawn in
                    candidates.bring_forward(ESTIMATED_FROM);
                }
                candidates.top_k(k);
            }
            _ => candidates.keep_surprise(self.most),
        }
    }

    /// Returns how many candidates stay below the largest surprise, if probabilities follow Zipf's
    /// law; its exponent is estimated from the most likely candidates. At least 1.
    fn zipf_cut(&self, candidates: &Candidates) -> usize {
        let front = candidates.largest(ESTIMATED_FROM);
        let pairs = (1..).zip(front.windows(2)).map(|(rank, pair)| {
            let rank = f64::from(rank);
            let ranks = ((rank + 1.0) / rank).ln();
            (ranks, pair[0].logit - pair[1].logit)
        });
        let (products, squares) = pairs.fold((0.0, 0.0), |(products, squares), (t, b)| {
            (products + t * b, squares + t * t)
        });
        let exponent = products / squares;
        let excess = exponent - 1.0;
        let tail = 1.0 - (self.n_vocab as f64).powf(-excess);
        let k = (excess * self.most.exp2() / tail).powf(1.0 / exponent);
        match k.is_finite() && k < candidates.len() as f64 {
            true => (k as usize).max(1),
            // too many for an integer leaves one in llama.cpp
            false if !k.is_finite() || k > f64::from(i32::MAX) => 1,
            false => candidates.len(),
        }
    }

    fn correct(&mut self, logprob: f64) {
        let surprise = -logprob / std::f64::consts::LN_2;
        self.most -= self.rate * (surprise - self.target);
    }
}

/// Draws tokens whose probability is near a target on average.
#[derive(Clone, Debug)]
pub(super) struct Adaptive {
    target: f64,
    decay: f64,
    /// Probabilities of the tokens so far, and the number of these, both decaying.
    sum: f64,
    weight: f64,
    /// Probabilities of the last candidates, before they were reshaped.
    probabilities: Vec<f64>,
    /// Their tokens; empty if every token was one, in the order of ids.
    ids: Vec<u32>,
}

impl Adaptive {
    fn new(config: &SamplerConfig) -> Adaptive {
        let target = f64::from(config.adaptive_target);
        let decay = f64::from(config.adaptive_decay).min(MAX_DECAY);
        Adaptive {
            target,
            decay,
            sum: target / (1.0 - decay),
            weight: 1.0 / (1.0 - decay),
            probabilities: Vec::new(),
            ids: Vec::new(),
        }
    }

    fn reshape(&mut self, candidates: &mut Candidates) {
        let target = self.target.clamp(0.0, 1.0);
        let aim = (2.0 * target - self.sum / self.weight).clamp(0.0, 1.0);
        candidates.probabilities(&mut self.probabilities);
        candidates.ids().clone_into(&mut self.ids);
        candidates.reshape(&self.probabilities, |p| {
            let distance = (p - aim).abs() / WIDTH;
            PEAK - SLOPE * distance * distance / (1.0 + distance)
        });
    }

    fn accept(&mut self, id: u32) {
        let place = match self.ids.is_empty() {
            true => Some(id as usize),
            false => self.ids.iter().position(|of| *of == id),
        };
        if let Some(p) = place.and_then(|place| self.probabilities.get(place)) {
            self.sum = p + self.decay * self.sum;
            self.weight = 1.0 + self.decay * self.weight;
        }
        self.probabilities.clear();
        self.ids.clear();
    }
}
