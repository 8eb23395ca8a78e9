//! A beam search over one prompt: which texts go on, and which have been found. Knows neither pages
//! nor steps: it takes the outputs of its beams, and says which tokens follow which of them.

use crate::decoder::{Candidate, GenerationError, TextDecoder, Vocabulary};
use crate::sample::{ConfigError, SampleError};

use super::request::{BeamOutput, BeamSearch};

/// Maximum power of the length, so that any score is a number.
const MAX_PENALTY: f64 = 10.0;

/// A beam search in progress.
pub(super) struct Search {
    how: BeamSearch,
    /// In the order of their scores: a batch names them by their index.
    live: Vec<Beam>,
    /// The best texts that have ended, the best first, at most `width`.
    found: Vec<BeamOutput>,
}

/// A text that may go on.
struct Beam {
    decoder: Box<TextDecoder>,
    /// Sum of its tokens' log-probabilities.
    logprob: f64,
    /// Candidates for its next token, the best first, once they are known.
    next: Option<Vec<Candidate>>,
}

/// A candidate for the next token of a beam.
struct Ranked {
    parent: usize,
    candidate: Candidate,
    /// Sum of log-probabilities of the text that it would make.
    logprob: f64,
}

impl Search {
    /// Starts a search from a decoder.
    ///
    /// # Errors
    /// If the length penalty is out of its range.
    pub(super) fn new(how: BeamSearch, decoder: TextDecoder) -> Result<Search, ConfigError> {
        let penalty = how.length_penalty;
        if !(-MAX_PENALTY..=MAX_PENALTY).contains(&penalty) {
            return Err(ConfigError {
                what: "length_penalty",
                expected: format!("a number from {} to {MAX_PENALTY}", -MAX_PENALTY),
                got: penalty.to_string(),
            });
        }
        let first = Beam {
            decoder: Box::new(decoder),
            logprob: 0.0,
            next: None,
        };
        Ok(Search {
            how,
            live: vec![first],
            found: Vec::new(),
        })
    }

    /// Returns the number of tokens of every text that goes on.
    pub(super) fn generated(&self) -> usize {
        let first = self.live.first();
        first.map_or(0, |beam| beam.decoder.generated().len())
    }

    /// Takes the logits after the last token of a beam. A beam that is recomputed after a
    /// preemption gets the same logits once more.
    ///
    /// # Errors
    /// If no token can be chosen from them.
    pub(super) fn take(
        &mut self,
        beam: usize,
        logits: &[f32],
        vocabulary: &dyn Vocabulary,
    ) -> Result<(), GenerationError> {
        let n = 2 * self.how.width;
        let Beam { decoder, next, .. } = &mut self.live[beam];
        *next = Some(decoder.candidates(logits, n, vocabulary)?);
        Ok(())
    }

    /// Advances by a token once every beam has its output; returns the parent beam, by index, and
    /// the token of each new beam; nothing if the search is over.
    ///
    /// # Errors
    /// If no beam can go on and nothing has been found, or a constraint refuses what it allowed.
    pub(super) fn advance(
        &mut self,
        vocabulary: &dyn Vocabulary,
    ) -> Result<Vec<(usize, u32)>, GenerationError> {
        let ranked = self.rank();
        let before = std::mem::take(&mut self.live);
        let (mut next, mut going_on) = (Vec::new(), 0);
        for (place, ranked) in ranked.into_iter().enumerate() {
            let is_best = place < self.how.width;
            if !is_best && going_on == self.how.width {
                break;
            }
            let parent = &before[ranked.parent].decoder;
            let token = ranked.candidate.id;
            let ends = parent.would_end(token, vocabulary);
            if ends && !is_best {
                continue;
            }
            going_on += usize::from(!ends);
            let decoder = parent.followed_by(ranked.candidate, vocabulary)?;
            if decoder.finish().is_some() {
                self.keep(decoder, ranked.logprob);
                continue;
            }
            next.push((ranked.parent, token));
            self.live.push(Beam {
                decoder: Box::new(decoder),
                logprob: ranked.logprob,
                next: None,
            });
        }
        // a decoder of no tokens has ended without one
        for beam in before {
            if beam.decoder.generated().is_empty() && beam.decoder.finish().is_some() {
                self.keep(*beam.decoder, beam.logprob);
            }
        }
        if self.live.is_empty() && self.found.is_empty() {
            return Err(SampleError::NothingLeft.into());
        }
        if self.is_over() {
            self.live.clear();
            next.clear();
        }
        Ok(next)
    }

    /// Takes the best texts, the best first.
    pub(super) fn take_found(&mut self) -> Vec<BeamOutput> {
        std::mem::take(&mut self.found)
    }

    /// Ranks the candidates of all beams, the best first. Equal sums are in the order of their
    /// beams, and those of one beam in the order of its candidates: by logit, then by id.
    fn rank(&mut self) -> Vec<Ranked> {
        let mut ranked = Vec::new();
        for (parent, beam) in self.live.iter_mut().enumerate() {
            let before = beam.logprob;
            let next = beam.next.take().unwrap_or_default();
            ranked.extend(next.into_iter().map(|candidate| Ranked {
                parent,
                logprob: before + candidate.logprob,
                candidate,
            }));
        }
        ranked.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        ranked
    }

    /// Returns the score of a text of this many tokens.
    fn score(&self, logprob: f64, tokens: usize) -> f64 {
        logprob / (tokens.max(1) as f64).powf(self.how.length_penalty)
    }

    /// Returns whether a text of this score would be among the best. Of equals the earlier one is
    /// better.
    fn would_keep(&self, score: f64) -> bool {
        self.found.len() < self.how.width
            || self.found.last().is_some_and(|worst| score > worst.score)
    }

    /// Keeps a text that has ended if it is among the best.
    fn keep(&mut self, decoder: TextDecoder, logprob: f64) {
        let score = self.score(logprob, decoder.generated().len());
        if !self.would_keep(score) {
            return;
        }
        let place = self.found.partition_point(|found| found.score >= score);
        let found = BeamOutput {
            text: decoder.into_text(),
            logprob,
            score,
        };
        self.found.insert(place, found);
        self.found.truncate(self.how.width);
    }

    /// Returns whether no beam goes on, or `width` texts have ended and the best beam would not be
    /// better than the worst of them if it ended here.
    fn is_over(&self) -> bool {
        self.live.first().is_none_or(|best| {
            !self.would_keep(self.score(best.logprob, best.decoder.generated().len()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::{Bounds, FinishReason, GenerationParams};

    /// A vocabulary whose tokens are letters; 0 ends the text.
    struct Letters;

    impl Vocabulary for Letters {
        fn piece(&self, id: u32) -> &[u8] {
            &b"-abcd"[id as usize..=id as usize]
        }

        fn is_special(&self, id: u32) -> bool {
            id == 0
        }

        fn eog_ids(&self) -> &[u32] {
            &[0]
        }
    }

    fn search(width: usize, length_penalty: f64, options: &GenerationParams) -> Search {
        let bounds = Bounds {
            n_ctx: 8,
            n_vocab: 5,
        };
        let decoder = TextDecoder::new(&[1], options, bounds, &Letters).expect("it fits");
        let how = BeamSearch {
            width,
            length_penalty,
        };
        Search::new(how, decoder).expect("it is in range")
    }

    /// Takes a step with the same logits for every beam.
    fn step(search: &mut Search, logits: &[f32]) -> Vec<(usize, u32)> {
        for beam in 0..search.live.len() {
            search.take(beam, logits, &Letters).expect("candidates");
        }
        search.advance(&Letters).expect("it goes on or ends")
    }

    #[test]
    fn equals_are_in_the_order_of_beams_and_tokens() {
        let options = GenerationParams {
            ignore_eos: true,
            ..GenerationParams::default()
        };
        let mut search = search(3, 1.0, &options);
        assert_eq!(step(&mut search, &[0.0; 5]), [(0, 1), (0, 2), (0, 3)]);
        assert_eq!(step(&mut search, &[0.0; 5]), [(0, 1), (0, 2), (0, 3)]);
        let better = [0.0, 0.0, 5.0, 0.0, 5.0];
        assert_eq!(step(&mut search, &better), [(0, 2), (0, 4), (1, 2)]);
    }

    #[test]
    fn only_the_best_may_end_a_text_and_the_first_of_equals_is_kept() {
        let mut all = search(1, 1.0, &GenerationParams::default());
        // ending is second best and so dropped, although it would score better than the final text
        assert_eq!(step(&mut all, &[1.0, 1.5, 0.0, 0.0, 0.0]), [(0, 1)]);
        assert_eq!(
            step(&mut all, &[0.0; 5]),
            [],
            "the end is the first of equals"
        );
        let found = all.take_found();
        assert_eq!(found.len(), 1);
        assert_eq!(
            (&found[0].text.tokens[..], found[0].text.finish),
            (&[1, 0][..], FinishReason::Stop)
        );
        assert_eq!(found[0].score, found[0].logprob / 2.0);
    }

    #[test]
    fn a_search_goes_on_while_what_goes_on_is_better_than_the_worst_that_was_found() {
        // an end and another token are equally likely after one that was nearly certain
        let (certain, even) = ([-9.0, 9.0, 0.0, 0.0, 0.0], [9.0, 9.0, 0.0, 0.0, 0.0]);
        // with a small penalty each ended text scores like the beam that goes on, and worse than
        // the one before; with a large one it scores better, up to the end of the context
        for (penalty, steps) in [(1.0, 3), (2.0, 8)] {
            let mut search = search(2, penalty, &GenerationParams::default());
            step(&mut search, &certain);
            let mut taken = 2;
            while !step(&mut search, &even).is_empty() {
                taken += 1;
            }
            let found = search.take_found();
            assert_eq!((taken, found.len()), (steps, 2), "{penalty}: {found:?}");
            assert!(found[0].score >= found[1].score);
        }
    }

    #[test]
    fn who_asks_for_no_tokens_gets_an_empty_text() {
        let options = GenerationParams {
            max_tokens: Some(0),
            ..GenerationParams::default()
        };
        let mut search = search(2, 1.0, &options);
        assert_eq!(step(&mut search, &[0.0; 5]), []);
        let found = search.take_found();
        assert_eq!((found.len(), found[0].score), (1, 0.0));
        assert_eq!(found[0].text.finish, FinishReason::Length);
    }

    #[test]
    fn a_penalty_out_of_its_range_is_refused() {
        for length_penalty in [f64::NAN, 11.0, f64::NEG_INFINITY] {
            let how = BeamSearch {
                width: 1,
                length_penalty,
            };
            let bounds = Bounds {
                n_ctx: 8,
                n_vocab: 5,
            };
            let options = GenerationParams::default();
            let decoder = TextDecoder::new(&[1], &options, bounds, &Letters).expect("it fits");
            let error = Search::new(how, decoder)
                .err()
                .expect("refused")
                .to_string();
            assert!(
                error.starts_with("length_penalty: expected a number"),
                "{error}"
            );
        }
    }
}
