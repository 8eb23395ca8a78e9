//! Copies to a device and back, of sizes around those of the GPU's staging buffers.

use octavo_kernels::cuda::{Device, Ptr};

use super::device;

/// Returns bytes that differ between uploads and have a long period.
fn bytes(seed: usize, n: usize) -> Vec<u8> {
    (0..n).map(|i| ((i + 7 * seed) * 31 % 251) as u8).collect()
}

#[test]
fn what_is_uploaded_is_downloaded() {
    let Some(mut bench) = device() else { return };
    let device = bench.0.device();
    let sizes = [
        1,
        4096,
        (256 << 10) - 1,
        256 << 10,
        (256 << 10) + 1,
        (8 << 20) + 5,
        (24 << 20) + 3,
    ];
    let room = device.alloc(sizes.iter().sum()).expect("memory");
    let places = sizes
        .iter()
        .scan(0, |at, n| Some((std::mem::replace(at, *at + n), *n)));
    let places: Vec<(Ptr, usize)> = places.map(|(at, n)| (room.offset(at as u64), n)).collect();
    for (i, (at, n)) in places.iter().enumerate() {
        device.upload(*at, &bytes(i, *n)).expect("its own memory");
    }
    let mut got: Vec<Vec<u8>> = sizes.iter().map(|n| vec![0; *n]).collect();
    let mut copies: Vec<(Ptr, &mut [u8])> = places
        .iter()
        .zip(&mut got)
        .map(|((at, _), bytes)| (*at, &mut bytes[..]))
        .collect();
    device.download_all(&mut copies).expect("its own memory");
    for (i, (got, n)) in got.iter().zip(sizes).enumerate() {
        assert!(*got == bytes(i, n), "{n} bytes");
    }
}

/// More uploads than there are buffers, each over the one before, without waiting in between.
#[test]
fn uploads_happen_in_their_order() {
    let Some(mut bench) = device() else { return };
    let device = bench.0.device();
    let mut host = device.host_buffer(1 << 14).expect("memory");
    let at = device.alloc(1 << 16).expect("memory");
    let log = device.alloc(20 << 16).expect("memory");
    for i in 0..20u64 {
        device
            .upload(at, &bytes(i as usize, 1 << 16))
            .expect("its own memory");
        device
            .copy(at, log.offset(i << 16), 1 << 16)
            .expect("its own memory");
    }
    for i in 0..20u64 {
        device
            .download(log.offset(i << 16), host.bytes_mut(1 << 14))
            .expect("its own memory");
        assert!(
            host.bytes_mut(1 << 14) == bytes(i as usize, 1 << 16),
            "upload {i}"
        );
    }
}

#[test]
fn nothing_is_read_where_one_range_is_not_the_devices() {
    let Some(mut bench) = device() else { return };
    let device: &mut dyn Device = bench.0.device();
    let at = device.alloc(8).expect("memory");
    device.upload(at, &[1; 8]).expect("its own memory");
    device.download_all(&mut []).expect("nothing is asked for");
    let (mut inside, mut outside) = ([0; 8], [0; 8]);
    let copies = &mut [(at, &mut inside[..]), (at.offset(4), &mut outside[..])];
    assert!(
        device
            .download_all(copies)
            .is_err_and(|e| e.to_string().contains("not allocated"))
    );
    assert!(device.upload(at.offset(4), &outside).is_err());
}
