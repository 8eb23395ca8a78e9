//! Tests that all programs run.

use std::fmt;

/// A test: a prompt, or generation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Test {
    pub(super) threads: u32,
    /// Tokens already in the KV cache.
    pub(super) depth: u32,
    pub(super) tokens: Tokens,
}

/// Tokens of a test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Tokens {
    Prompt(u32),
    Generated(u32),
}

impl Test {
    /// Every combination of these; a length of 0 is none.
    pub(super) fn all(
        threads: &[u32],
        depths: &[u32],
        prompts: &[u32],
        generated: &[u32],
    ) -> Vec<Test> {
        let prompts = prompts.iter().filter(|n| **n > 0);
        let generated = generated.iter().filter(|n| **n > 0);
        let tokens: Vec<Tokens> = prompts
            .map(|n| Tokens::Prompt(*n))
            .chain(generated.map(|n| Tokens::Generated(*n)))
            .collect();
        let mut all = Vec::new();
        for &threads in threads {
            for &depth in depths {
                all.extend(tokens.iter().map(|&tokens| Test {
                    threads,
                    depth,
                    tokens,
                }));
            }
        }
        all
    }

    /// Arguments of octavo bench, and of llama-bench.
    pub(super) fn args(self) -> Vec<String> {
        let (prompt, generated) = match self.tokens {
            Tokens::Prompt(n) => (n, 0),
            Tokens::Generated(n) => (0, n),
        };
        let mut args = vec![("-t", self.threads), ("-p", prompt), ("-n", generated)];
        // ik_llama.cpp's has no such option
        args.extend((self.depth > 0).then_some(("-d", self.depth)));
        args.iter()
            .flat_map(|(name, n)| [(*name).to_owned(), n.to_string()])
            .collect()
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tokens {
            Tokens::Prompt(n) => write!(f, "pp{n}")?,
            Tokens::Generated(n) => write!(f, "tg{n}")?,
        }
        if self.depth > 0 {
            write!(f, " @ d{}", self.depth)?;
        }
        let plural = if self.threads == 1 { "" } else { "s" };
        write!(f, ", {} thread{plural}", self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_all_combinations_and_have_names_and_arguments() {
        let all = Test::all(&[1, 2], &[0, 9], &[512], &[0, 64]);
        let names: Vec<String> = all.iter().map(Test::to_string).collect();
        assert_eq!(names.len(), 8);
        assert_eq!(
            [&*names[0], &names[3]],
            ["pp512, 1 thread", "tg64 @ d9, 1 thread"]
        );
        assert_eq!(all[0].args().join(" "), "-t 1 -p 512 -n 0");
        assert_eq!(all[7].args().join(" "), "-t 2 -p 0 -n 64 -d 9");
    }
}
