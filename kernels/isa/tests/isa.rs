//! Instruction sets by name, and the strips that their kernels pack.
#![allow(unsafe_code, reason = "kernels are called through their tables")]

use octavo_isa::{Isa, IsaChoice, IsaError};
use octavo_simd::formats::{Blocks, FormatInfo, Transposed, Weights, rows};

#[test]
fn names_round_trip_and_unknown_ones_are_refused() {
    for isa in Isa::ALL {
        assert_eq!(isa.name().parse::<IsaChoice>(), Ok(IsaChoice::Only(isa)));
    }
    assert_eq!("auto".parse::<IsaChoice>(), Ok(IsaChoice::Auto));
    assert!("sse9".parse::<IsaChoice>().is_err());
    assert_eq!(IsaChoice::Only(Isa::Scalar).resolve(), Ok(Isa::Scalar));
    let foreign = if cfg!(target_arch = "aarch64") {
        Isa::Avx2
    } else {
        Isa::Neon
    };
    assert!(matches!(
        IsaChoice::Only(foreign).resolve(),
        Err(IsaError::Missing { .. })
    ));
}

/// Packs rows as the layout is described, code by code.
fn plain(format: &Blocks, rows: &[Vec<u8>], r: usize) -> Vec<u8> {
    let (bytes, k) = (format.ty.block_bytes(), format.k);
    let blocks = rows[0].len() / bytes;
    let mut out = vec![0; blocks * bytes * r];
    for (i, row) in rows.iter().enumerate() {
        for (raw, block) in row.chunks(bytes).zip(out.chunks_mut(bytes * r)) {
            let (meta, planes) = block.split_at_mut(format.meta * r);
            (format.transpose)(raw, &mut Transposed { meta, i, r });
            let mut codes = vec![0; k];
            (format.unpack)(raw, &mut codes);
            let (mut start, mut from) = (0, 0);
            for bits in [format.low, format.high, format.top] {
                for (at, code) in codes.iter().enumerate() {
                    let Some(groups) = 8usize.checked_div(bits) else {
                        break;
                    };
                    let (group, byte) = (at / 4, at % 4);
                    let vector = start + group / groups * 4 * r;
                    let code = u32::from(code >> from) & ((1 << bits) - 1);
                    planes[vector + 4 * i + byte] |= (code << (group % groups * bits)) as u8;
                }
                start += k * bits / 8 * r;
                from += bits;
            }
        }
    }
    out
}

#[test]
fn strips_have_every_code_in_its_place() {
    let mut state = 1u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    for isa in Isa::available() {
        let table = isa.table();
        let r = table.strip;
        for FormatInfo { ty, weights } in rows() {
            let Some(kernels) = (table.packed)(*ty) else {
                continue;
            };
            // the words of a block have no layout but their decoder's
            if matches!(weights, Weights::Words(_)) {
                continue;
            }
            for (n, blocks_a_row) in [(r, 1), (r, 3), (r - 1, 2), (1, 1)] {
                let row_bytes = blocks_a_row * ty.block_bytes();
                let source_rows: Vec<Vec<u8>> = (0..n)
                    .map(|_| (0..row_bytes).map(|_| random()).collect())
                    .collect();
                let expected = match weights {
                    Weights::Planes(format) => plain(format, &source_rows, r),
                    Weights::Floats | Weights::Words(_) => (0..row_bytes * r)
                        .map(|at| {
                            let (e, b) = (ty.block_bytes(), at % ty.block_bytes());
                            source_rows
                                .get(at / e % r)
                                .map_or(0, |row| row[at / (e * r) * e + b])
                        })
                        .collect(),
                };
                // old contents must not show
                let mut got = vec![0xff; expected.len()];
                let source_rows: Vec<&[u8]> = source_rows.iter().map(Vec::as_slice).collect();
                // SAFETY: the CPU has the instruction set.
                unsafe { (kernels.pack)(&source_rows, &mut got) };
                assert!(
                    got == expected,
                    "{isa} {ty}: {n} rows of {blocks_a_row} blocks"
                );
            }
        }
    }
}
