//! The logarithmic mel spectrogram that Whisper's encoder reads.

use super::SAMPLE_RATE;
use super::fourier::Fourier;

/// Samples of a window.
const WINDOW: usize = 400;
/// Samples from one frame to the next.
const HOP: usize = 160;
/// Values of a window's spectrum.
const BINS: usize = WINDOW / 2 + 1;
/// Frames of a chunk: 30 seconds.
const CHUNK: usize = 3000;
/// Samples of the reflection before the first one.
const PAD: usize = WINDOW / 2;
/// Most frames of a window of Qwen 3's encoder.
const LONGEST: usize = 800;
/// Frames that it convolves at once.
const PART: usize = 100;
/// Power below which values of a frame are cut: 2^-24.
const FLOOR: f64 = 5.960464477539063e-08;
/// Hertz at which Slaney's mel scale turns from linear to logarithmic.
const LINEAR_TO: f64 = 1000.0;
/// Mels per Hertz below.
const SLOPE: f64 = 3.0 / 200.0;

/// A part of a spectrogram that an encoder reads at once.
#[derive(Clone, Debug, PartialEq)]
pub struct MelChunk {
    /// Frames of 10 ms.
    pub n_frame: usize,
    /// `[n_mel][n_frame]`.
    pub values: Vec<f32>,
}

/// Computes spectrograms.
pub struct LogMel {
    n_mel: usize,
    fourier: Fourier,
    window: Vec<f32>,
    /// `[n_mel][BINS]`.
    filters: Vec<f32>,
}

impl LogMel {
    /// Prepares spectrograms of `n_mel` bands from 0 to 8000 Hz.
    pub fn new(n_mel: usize) -> LogMel {
        let hann = |i: usize| {
            let angle = 2.0 * std::f64::consts::PI * i as f64 / WINDOW as f64;
            (0.5 * (1.0 - f64::from((angle as f32).cos()))) as f32
        };
        LogMel {
            n_mel,
            fourier: Fourier::new(WINDOW),
            window: (0..WINDOW).map(hann).collect(),
            filters: filters(n_mel),
        }
    }

    /// Returns the spectrogram of samples at [`SAMPLE_RATE`], in chunks of 30 seconds: the last is
    /// filled up with silence, and sound of whole chunks gets another one of silence alone, as
    /// libmtmd has it. There are none without samples.
    pub fn chunks(&self, samples: &[f32]) -> Vec<MelChunk> {
        if samples.is_empty() {
            return Vec::new();
        }
        let mut padded = reflected(samples);
        padded.resize(samples.len().max(PAD + 1) + CHUNK * HOP + 2 * PAD, 0.0);
        let mut frames = self.frames(&padded);
        let least = least(&frames);
        normalise(&mut frames, f64::from(least as f32));
        // a last part that is no whole chunk is padding
        let chunks = frames.chunks_exact(CHUNK * self.n_mel);
        chunks.map(|chunk| self.by_band(chunk)).collect()
    }

    /// As [`LogMel::chunks`], in the windows of 8 seconds that Qwen 3's encoder reads; the last is
    /// filled up with zeros to whole seconds.
    pub fn windows(&self, samples: &[f32]) -> Vec<MelChunk> {
        if samples.is_empty() {
            return Vec::new();
        }
        let mut padded = reflected(samples);
        let last = samples.iter().rev().skip(1).chain(std::iter::repeat(&0.0));
        padded.extend(last.take(PAD));
        let mut frames = self.frames(&padded);
        let least = least(&frames);
        normalise(&mut frames, least);
        let windows = frames.chunks(LONGEST * self.n_mel).map(|window| {
            let mut window = window.to_vec();
            let unit = PART * self.n_mel;
            window.resize(window.len().next_multiple_of(unit), 0.0);
            self.by_band(&window)
        });
        windows.collect()
    }

    /// Returns the logarithms of all whole frames, `[n_frame][n_mel]`.
    fn frames(&self, samples: &[f32]) -> Vec<f32> {
        let n_frame = (samples.len() - WINDOW) / HOP + 1;
        let mut frames = Vec::with_capacity(n_frame * self.n_mel);
        for at in (0..n_frame).map(|i| i * HOP) {
            self.frame(&samples[at..at + WINDOW], &mut frames);
        }
        frames
    }

    fn by_band(&self, frames: &[f32]) -> MelChunk {
        let band = |m: usize| frames[m..].iter().step_by(self.n_mel).copied();
        MelChunk {
            n_frame: frames.len() / self.n_mel,
            values: (0..self.n_mel).flat_map(band).collect(),
        }
    }

    /// Appends the logarithms of a frame's bands.
    fn frame(&self, samples: &[f32], frames: &mut Vec<f32>) {
        if samples.iter().all(|x| *x == 0.0) {
            frames.extend(std::iter::repeat_n(FLOOR.log10() as f32, self.n_mel));
            return;
        }
        let values = samples.iter().zip(&self.window).map(|(x, w)| w * x);
        let spectrum = self.fourier.transform(&values.collect::<Vec<_>>());
        let powers = spectrum[..BINS].iter().map(|[re, im]| re * re + im * im);
        let powers: Vec<f32> = powers.collect();
        for filter in self.filters.chunks_exact(BINS) {
            // fours are summed in single precision, their sums in double
            let fours = powers.chunks(4).zip(filter.chunks(4));
            let sum = fours.fold(0.0, |sum: f64, (p, f)| {
                let products = p.iter().zip(f).map(|(p, f)| p * f);
                sum + f64::from(products.reduce(|a, b| a + b).unwrap_or(0.0))
            });
            frames.push(sum.max(FLOOR).log10() as f32);
        }
    }
}

/// Returns the samples after a reflection of the first ones, the very first left out.
fn reflected(samples: &[f32]) -> Vec<f32> {
    let at = |i: usize| samples.get(i).copied().unwrap_or(0.0);
    let first = (1..=PAD).rev().map(at);
    first.chain(samples.iter().copied()).collect()
}

/// Returns the value below which others are cut: 8 below the highest.
fn least(values: &[f32]) -> f64 {
    f64::from(values.iter().copied().fold(-1e20, f32::max)) - 8.0
}

/// Cuts values below `least`, and moves them to about -1 to 1.
fn normalise(values: &mut [f32], least: f64) {
    for x in values {
        *x = ((f64::from(*x).max(least) + 4.0) / 4.0) as f32;
    }
}

/// Returns triangles on Slaney's mel scale, each with an area of 1: `[n_mel][BINS]`.
fn filters(n_mel: usize) -> Vec<f32> {
    let step = 6.4f64.ln() / 27.0;
    let last = LINEAR_TO * SLOPE + (f64::from(SAMPLE_RATE) / 2.0 / LINEAR_TO).ln() / step;
    let edge = |i: usize| {
        let mel = last * (i as f64 / (n_mel + 1) as f64);
        match mel < LINEAR_TO * SLOPE {
            true => mel / SLOPE,
            false => LINEAR_TO * ((mel - LINEAR_TO * SLOPE) * step).exp(),
        }
    };
    let hertz = f64::from(SAMPLE_RATE) / WINDOW as f64;
    let value = |m: usize, k: usize| {
        let [left, centre, right] = [0, 1, 2].map(|i| edge(m + i));
        let f = k as f64 * hertz;
        let height = match f {
            f if f >= left && f <= centre => (f - left) / (centre - left),
            f if f > centre && f <= right => (right - f) / (right - centre),
            _ => 0.0,
        };
        (height * (2.0 / (right - left))) as f32
    };
    (0..n_mel)
        .flat_map(|m| (0..BINS).map(move |k| value(m, k)))
        .collect()
}
