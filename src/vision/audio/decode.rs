//! Decodes sound files to samples of one channel, within limits.

use std::io::Cursor;

use symphonia::core::audio::{AudioBuffer, AudioBufferRef, Signal};
use symphonia::core::codecs::{CODEC_TYPE_MP3, CODEC_TYPE_NULL, Decoder, DecoderOptions};
use symphonia::core::conv::ConvertibleSample;
use symphonia::core::conv::FromSample;
use symphonia::core::errors::Error as Failure;
use symphonia::core::formats::{FormatOptions, FormatReader, Track};
use symphonia::core::io::{MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::probe::Hint;

use super::SAMPLE_RATE;
use super::resample::resample;
use crate::Error;

/// Lowest and highest rate that a file may have.
const RATES: [u32; 2] = [1000, 768_000];

/// Limits of sound files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AudioLimits {
    /// Maximum bytes of a file.
    pub bytes: usize,
    /// Maximum seconds of sound.
    pub seconds: usize,
}

impl Default for AudioLimits {
    fn default() -> AudioLimits {
        AudioLimits {
            bytes: 64 << 20,
            seconds: 3600,
        }
    }
}

/// Decodes a WAV, MP3 or FLAC file to samples of one channel at [`SAMPLE_RATE`], about -1 to 1:
/// channels are averaged, then the rate is changed, as libmtmd does.
///
/// # Errors
/// If it has another format, is damaged or empty, or exceeds the limits.
pub fn decode(bytes: &[u8], limits: &AudioLimits) -> Result<Vec<f32>, Error> {
    if bytes.len() > limits.bytes {
        return Err(Error::TooManyAudioBytes {
            got: bytes.len(),
            most: limits.bytes,
        });
    }
    if !is_audio(bytes) {
        let first = &bytes[..bytes.len().min(8)];
        return Err(Error::AudioFormat {
            got: format!("a file that begins with {first:02x?}"),
        });
    }
    let mut format = probe(bytes)?;
    let mut tracks = format.tracks().iter();
    let track = tracks.find(|t| t.codec_params.codec != CODEC_TYPE_NULL);
    let track = track.ok_or_else(|| damaged("no track with sound"))?.clone();
    let decoder = symphonia::default::get_codecs();
    let decoder = decoder.make(&track.codec_params, &DecoderOptions::default());
    let (samples, rate) = read(&mut *format, &track, decoder.map_err(bad)?, limits)?;
    if samples.is_empty() {
        return Err(damaged("no sound"));
    }
    Ok(resample(samples, rate, SAMPLE_RATE))
}

/// Returns whether a file begins as those of the formats that can be decoded.
fn is_audio(bytes: &[u8]) -> bool {
    let is_wav = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WAVE");
    let is_mp3 = matches!(bytes, [0xff, second, ..] if second & 0xe0 == 0xe0);
    is_wav || is_mp3 || bytes.starts_with(b"ID3") || bytes.starts_with(b"fLaC")
}

fn damaged(why: &str) -> Error {
    Error::DamagedAudio {
        why: why.to_owned(),
    }
}

fn bad(error: Failure) -> Error {
    // decoders may return several lines
    damaged(&error.to_string().replace(['\n', '\r'], " "))
}

fn probe(bytes: &[u8]) -> Result<Box<dyn FormatReader>, Error> {
    let source = Box::new(Cursor::new(bytes.to_vec()));
    let stream = MediaSourceStream::new(source, MediaSourceStreamOptions::default());
    let options = FormatOptions {
        enable_gapless: true,
        ..FormatOptions::default()
    };
    let probed = symphonia::default::get_probe().format(
        &Hint::new(),
        stream,
        &options,
        &MetadataOptions::default(),
    );
    Ok(probed.map_err(bad)?.format)
}

/// Returns all samples, with channels averaged, and their rate.
fn read(
    format: &mut dyn FormatReader,
    track: &Track,
    mut decoder: Box<dyn Decoder>,
    limits: &AudioLimits,
) -> Result<(Vec<f32>, u32), Error> {
    let (mut samples, mut rate) = (Vec::new(), None);
    let is_mp3 = track.codec_params.codec == CODEC_TYPE_MP3;
    loop {
        let packet = match format.next_packet() {
            Ok(packet) => packet,
            Err(Failure::IoError(e)) if e.kind() == std::io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(bad(error)),
        };
        if packet.track_id() != track.id {
            continue;
        }
        let buffer = decoder.decode(&packet).map_err(bad)?;
        let now = buffer.spec().rate;
        if !(RATES[0]..=RATES[1]).contains(&now) || *rate.get_or_insert(now) != now {
            let why = format!("{now} samples a second, after {}", rate.unwrap_or(0));
            return Err(damaged(&why));
        }
        average(&buffer, is_mp3, &mut samples)?;
        if samples.len() / now as usize > limits.seconds {
            return Err(Error::TooLong {
                most: limits.seconds,
            });
        }
    }
    Ok((samples, rate.unwrap_or(SAMPLE_RATE)))
}

/// Appends the mean of the channels. MP3 files have the precision that libmtmd keeps of them.
fn average(buffer: &AudioBufferRef<'_>, is_mp3: bool, samples: &mut Vec<f32>) -> Result<(), Error> {
    match buffer {
        // not the scale of other integers: 0 to 255 is -1 to 1
        AudioBufferRef::U8(b) => mean(b, |x| f32::from(x) * (2.0 / 255.0) - 1.0, samples),
        AudioBufferRef::S16(b) => mean(b, f32::from_sample, samples),
        AudioBufferRef::S24(b) => mean(b, f32::from_sample, samples),
        AudioBufferRef::S32(b) => mean(b, |x| (f64::from(x) / 2_147_483_648.0) as f32, samples),
        AudioBufferRef::F32(b) if is_mp3 => mean(b, sixteen_bits, samples),
        AudioBufferRef::F32(b) => mean(b, |x| x, samples),
        AudioBufferRef::F64(b) => mean(b, |x| x as f32, samples),
        _ => return Err(damaged("expected samples of 8, 16, 24, 32 or 64 bits")),
    }
    Ok(())
}

/// Rounds a sample as libmtmd's decoder of MP3 files does.
fn sixteen_bits(x: f32) -> f32 {
    (x * 32768.0).round_ties_even().clamp(-32768.0, 32767.0) / 32768.0
}

fn mean<S: ConvertibleSample>(
    buffer: &AudioBuffer<S>,
    value: impl Fn(S) -> f32,
    samples: &mut Vec<f32>,
) {
    let n_channel = buffer.spec().channels.count();
    let at = |i: usize| {
        let channels = (0..n_channel).map(|c| value(buffer.chan(c)[i]));
        channels.fold(0.0, |sum, x| sum + x) / n_channel as f32
    };
    samples.extend((0..buffer.frames()).map(at));
}
