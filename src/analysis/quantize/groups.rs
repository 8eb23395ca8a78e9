//! Converts AWQ groups to Q4_1 blocks with the same codes and scales.

use gguf_rs_lite::TensorType;
use half::f16;

/// Returns whether [`q4_1`] converts `from` to `to`.
pub(super) fn become_blocks(from: TensorType, to: TensorType) -> bool {
    TensorType::AWQ.contains(&from) && to == TensorType::Q4_1
}

/// Converts groups to blocks of 32 with a minimum; also returns the largest difference from
/// rounding `-zero * scale` to f16, in steps of the group's scale.
pub(super) fn q4_1(ty: TensorType, groups: &[u8]) -> (Vec<u8>, f32) {
    let (mut out, mut most) = (Vec::with_capacity(groups.len() * 5 / 4), 0f32);
    for group in groups.chunks_exact(ty.block_bytes()) {
        let (head, codes) = group.split_at(3);
        let scale = f16::from_le_bytes([head[0], head[1]]).to_f32();
        let exact = -f32::from(head[2] & 15) * scale;
        let min = f16::from_f32(exact);
        if scale != 0.0 {
            most = most.max(((min.to_f32() - exact) / scale).abs());
        }
        for codes in codes.chunks_exact(16) {
            out.extend_from_slice(&head[..2]);
            out.extend_from_slice(&min.to_le_bytes());
            out.extend_from_slice(codes);
        }
    }
    (out, most)
}
