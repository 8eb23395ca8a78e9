//! Sound files become libmtmd's samples and spectrograms. `audio/` has files that soundfile wrote
//! from synthetic sound, each with the samples that stock llama.cpp decodes, and mel frames.

use octavo_fixtures::breaking::{Rng, damage};
use octavo_vision::audio::{AudioLimits, LogMel, SAMPLE_RATE, decode};

type Files = [(&'static str, &'static [u8], &'static [u8])];

macro_rules! files {
    ($($name:literal),*) => {
        &[$((
            $name,
            include_bytes!(concat!("audio/", $name)),
            include_bytes!(concat!("audio/", $name, ".f32")),
        )),*]
    };
}

/// Files whose decoding leaves no choice.
const EXACT: &Files = files!(
    "s22.flac",
    "s24.flac",
    "u8.wav",
    "s16.wav",
    "s24.wav",
    "s32.wav",
    "f32.wav",
    "f64.wav",
    "mulaw.wav",
    "alaw.wav"
);
/// Files whose samples two decoders round to 16 bits from slightly different values.
const LOSSY: &Files = files!("m44.mp3", "s32.mp3");
const MEL_128: &[u8] = include_bytes!("audio/mel128.f32");
/// Of Qwen 3's windows.
const MEL_QWEN: &[u8] = include_bytes!("audio/mel-qwen3.f32");
const MEL_80: &[u8] = include_bytes!("audio/mel80.f32");

fn floats(bytes: &[u8]) -> Vec<f32> {
    let number = |b: &[u8]| f32::from_le_bytes(b.try_into().expect("four bytes"));
    bytes.chunks_exact(4).map(number).collect()
}

fn samples(file: &[u8]) -> Vec<f32> {
    decode(file, &AudioLimits::default()).expect("a sound file")
}

/// Returns the largest difference and its place.
fn largest(got: &[f32], expected: &[f32]) -> (f32, usize) {
    let differences = got.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let all = differences.enumerate().map(|(i, d)| (d, i));
    all.fold((0.0, 0), |a, b| if b.0 > a.0 { b } else { a })
}

#[test]
fn wav_and_flac_files_have_libmtmds_samples_to_the_bit() {
    for (name, file, golden) in EXACT {
        let (got, expected) = (samples(file), floats(golden));
        assert_eq!(got.len(), expected.len(), "{name}");
        assert_eq!(largest(&got, &expected), (0.0, 0), "{name}");
    }
}

#[test]
fn mp3_files_have_libmtmds_samples_but_for_rounding() {
    for (name, file, golden) in LOSSY {
        let (got, expected) = (samples(file), floats(golden));
        assert_eq!(got.len(), expected.len(), "{name}");
        let (difference, at) = largest(&got, &expected);
        println!("{name}: {difference:e} at {at}");
        // one of 16 bits, which the filter spreads over its neighbours
        assert!(difference < 1.0 / 32768.0, "{name}: {difference} at {at}");
    }
}

#[test]
fn spectrograms_are_libmtmds() {
    let samples = samples(EXACT[0].1);
    for (n_mel, golden) in [(128, MEL_128), (80, MEL_80)] {
        let chunks = LogMel::new(n_mel).chunks(&samples);
        assert_eq!(chunks.len(), 1);
        let chunk = &chunks[0];
        assert_eq!((chunk.n_frame, chunk.values.len()), (3000, 3000 * n_mel));
        // the sound, its end, and silence
        let frames = (0..24).chain([1000, 2999]);
        let got = frames.flat_map(|f| chunk.values[f..].iter().step_by(3000).copied());
        let got: Vec<f32> = got.collect();
        let expected = floats(golden);
        assert_eq!(got.len(), expected.len());
        // equal operations on equal samples: only sines, cosines and logarithms of another library
        // may round otherwise; an ulp of a band's power is 2^-23 / ln 10 / 4 of its value, and 400
        // terms of a spectrum have one of a sine each
        let (difference, at) = largest(&got, &expected);
        println!("{n_mel} bands: {difference:e} at {at}");
        assert!(
            difference < 2.0 * 400.0 * f32::EPSILON / 9.2,
            "{difference} at {at}"
        );
    }
}

#[test]
fn windows_are_libmtmds() {
    let windows = LogMel::new(128).windows(&samples(EXACT[0].1));
    assert_eq!((windows.len(), windows[0].n_frame), (1, 100));
    // the sound, and zeros after it
    let frames = (0..24).flat_map(|f| windows[0].values[f..].iter().step_by(100));
    let got: Vec<f32> = frames.copied().collect();
    let expected = floats(MEL_QWEN);
    assert_eq!(got.len(), expected.len());
    let (difference, at) = largest(&got, &expected);
    println!("windows: {difference:e} at {at}");
    assert!(
        difference < 2.0 * 400.0 * f32::EPSILON / 9.2,
        "{difference} at {at}"
    );
    let frames = |n: usize| {
        let windows = LogMel::new(80).windows(&vec![0.25; n]);
        windows.iter().map(|w| w.n_frame).collect::<Vec<_>>()
    };
    assert!(frames(0).is_empty());
    assert_eq!(frames(1), [100]);
    assert_eq!(frames(160 * 99), [100]);
    assert_eq!(frames(160 * 100), [200]);
    assert_eq!(frames(160 * 799), [800]);
    assert_eq!(frames(160 * 1000), [800, 300]);
}

#[test]
fn whole_chunks_are_followed_by_silence() {
    let mel = LogMel::new(80);
    let n = |seconds: usize| {
        mel.chunks(&vec![0.25; seconds * SAMPLE_RATE as usize])
            .len()
    };
    assert_eq!([0, 1, 29, 30, 31].map(n), [0, 1, 1, 2, 2]);
    assert_eq!(mel.chunks(&[0.5]).len(), 1, "one sample");
}

#[test]
fn limits_and_other_files_are_errors_of_one_line() {
    let refusal = |file: &[u8], limits: &AudioLimits| {
        let error = decode(file, limits).expect_err("it is refused").to_string();
        assert!(!error.contains('\n'), "{error}");
        error
    };
    let (limits, wav) = (AudioLimits::default(), EXACT[3].1);
    let png = refusal(b"\x89PNG\r\n\x1a\n", &limits);
    assert!(png.starts_with("expected a WAV, MP3 or FLAC file"), "{png}");
    refusal(b"", &limits);
    refusal(&wav[..44], &limits);
    let bytes = AudioLimits {
        bytes: wav.len() - 1,
        ..limits
    };
    let large = refusal(wav, &bytes);
    assert_eq!(large, "a sound file of 17684 bytes: expected at most 17683");
    let seconds = AudioLimits {
        seconds: 0,
        ..limits
    };
    // one second and a bit, and the sizes of both chunks
    let mut long = wav[..44].to_vec();
    long.resize(44 + 5 * 44_100, 0);
    for (at, header) in [(4, 8), (40, 44)] {
        let size = u32::try_from(long.len() - header).expect("a size");
        long[at..at + 4].copy_from_slice(&size.to_le_bytes());
    }
    let long = refusal(&long, &seconds);
    assert_eq!(long, "sound of more than 0 seconds: expected at most 0");
}

/// Damaged, cut and extended files are decoded within the limits, or give a one-line error.
#[test]
fn three_hundred_damaged_files() {
    let limits = AudioLimits {
        seconds: 10,
        ..AudioLimits::default()
    };
    let mut rng = Rng(29);
    let (mut decoded, mut refused) = (0, 0);
    for i in 0..300 {
        let all: Vec<_> = EXACT.iter().chain(LOSSY).collect();
        let mut bytes = all[i % all.len()].1.to_vec();
        for _ in 0..1 + rng.below(8) {
            // headers are the most fragile part
            let end = if rng.below(2) == 0 {
                64
            } else {
                bytes.len() - 8
            };
            let at = rng.below(end);
            damage(&mut rng, &mut bytes, at);
        }
        if rng.below(4) == 0 {
            bytes.truncate(rng.below(bytes.len()));
        }
        match decode(&bytes, &limits) {
            Ok(samples) => {
                decoded += 1;
                let most = 11 * SAMPLE_RATE as usize;
                assert!(samples.len() <= most, "file {i}: {} samples", samples.len());
            }
            Err(error) => {
                refused += 1;
                let error = error.to_string();
                assert!(
                    !error.contains('\n') && error.len() < 200,
                    "file {i}: {error}"
                );
            }
        }
    }
    assert!(
        decoded > 30 && refused > 30,
        "{decoded} decoded, {refused} refused"
    );
}
