//! Measures the peak bandwidth and FLOP rate of a GPU, as limits to compare kernels with.

use std::time::Instant;

use super::params::Peak;
use super::{Device, Error, launch};

/// Minimum duration of a measurement in seconds.
const SECONDS: f64 = 0.2;

/// Runs `work`, of `units` units each, for at least `seconds`; returns units per second.
fn rate<D: Device + ?Sized>(
    device: &mut D,
    units: f64,
    seconds: f64,
    mut work: impl FnMut(&mut D) -> Result<(), Error>,
) -> Result<f64, Error> {
    // a download waits for all earlier work
    let wait = device.alloc(4)?;
    device.upload(wait, &[0; 4])?;
    let settle = |device: &mut D| device.download(wait, &mut [0; 4]);
    work(device)?;
    settle(device)?;
    let (start, mut times) = (Instant::now(), 0.0);
    loop {
        for _ in 0..8 {
            work(device)?;
        }
        settle(device)?;
        times += 8.0;
        let passed = start.elapsed().as_secs_f64();
        if passed >= seconds {
            return Ok(units * times / passed);
        }
    }
}

/// Measures memory bandwidth in GB/s (1e9 bytes) by a copy of `bytes`, counting each byte as read
/// and written.
///
/// # Errors
/// If the device lacks the memory, or fails.
pub fn copy_bandwidth<D: Device + ?Sized>(device: &mut D, bytes: usize) -> Result<f64, Error> {
    let (from, to) = (device.alloc(bytes)?, device.alloc(bytes)?);
    let copied = rate(device, 2.0 * bytes as f64, SECONDS, |device| {
        device.copy(from, to, bytes)
    })?;
    Ok(copied / 1e9)
}

/// Measures the GFLOP/s of tensor core products of f16 with f32 accumulation, by a kernel that runs
/// `rounds` rounds of them and nothing else. Hopper's tensor cores reach more with instructions
/// that only Hopper has.
///
/// # Errors
/// If the device fails, or its sums are wrong.
pub fn flops_peak<D: Device + ?Sized>(device: &mut D, rounds: u32) -> Result<f64, Error> {
    let blocks = 4 * device.multiprocessors();
    let threads = (blocks * launch::PEAK_THREADS) as usize;
    let out = device.alloc(4 * threads)?;
    let launch = launch::mma_peak(
        &Peak {
            out,
            rounds,
            unused: 0,
        },
        blocks,
    );
    // a warp multiplies 16 x 16 by 16 x 8
    let flops = 2.0
        * 16.0
        * 16.0
        * 8.0
        * f64::from(launch::PEAK_SUMS)
        * f64::from(rounds)
        * (threads / 32) as f64;
    // SAFETY: `out` has 4 bytes for each thread.
    let measured = rate(device, flops, SECONDS, |device| unsafe {
        device.launch(&launch)
    })?;
    let mut sums = vec![0; 4 * threads];
    device.download(out, &mut sums)?;
    // sums of ones are exact below 2^24
    let begun_with: u32 = (0..launch::PEAK_SUMS).sum();
    let expected = (16 * 4 * launch::PEAK_SUMS * rounds + 4 * begun_with) as f32;
    if sums
        .as_chunks::<4>()
        .0
        .iter()
        .any(|sum| f32::from_le_bytes(*sum) != expected)
    {
        return Err(Error::Kernel {
            kernel: launch.kernel,
            message: format!("expected sums of {expected}"),
        });
    }
    Ok(measured / 1e9)
}
