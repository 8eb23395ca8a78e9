//! Images among the tokens of a text.

/// How images among a text's tokens are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Images {
    /// The model reads text alone.
    None,
    /// Tokens of an image attend to those before them, like a text's.
    Causal,
    /// Tokens of an image attend to each other in all layers.
    Bidirectional,
    /// Tokens of an image attend to each other in layers with sliding windows.
    BidirectionalInWindows,
}

impl Images {
    /// Returns whether tokens of an image attend to each other in a layer with or without a window.
    pub(crate) fn see_each_other(self, window: Option<usize>) -> bool {
        match self {
            Images::None | Images::Causal => false,
            Images::Bidirectional => true,
            Images::BidirectionalInWindows => window.is_some(),
        }
    }
}
