//! The CUDA kernels on the CPU (or on a GPU, see `common/device.rs`), against the oracle: every kernel, odd shapes, three orders of threads. And the shim
//! itself: faults that are planted must be seen.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/device.rs"]
mod machine;

mod attention;
mod copies;
mod faults;
mod probe;
mod products;
mod rows;

use common::f32_bytes;
use machine::{Machine, machine, shim};
use octavo_kernels::cuda::pack::pack;
use octavo_kernels::cuda::params::{Arrange, Gemm, Gemv, Matrix};
use octavo_kernels::cuda::shim::Sources;
use octavo_kernels::cuda::{Error, Launch, Ptr, launch};
use octavo_quant::TensorType as T;

/// What tests run on, if there is any.
fn device() -> Option<Bench> {
    machine(env!("CARGO_TARGET_TMPDIR")).map(Bench)
}

/// The CPU with changed sources.
fn device_of(sources: Sources) -> Option<Bench> {
    shim(env!("CARGO_TARGET_TMPDIR"), sources).map(|shim| Bench(Machine::Shim(shim)))
}

struct Bench(Machine);

impl Bench {
    fn bytes(&mut self, bytes: &[u8]) -> Ptr {
        let at = self.0.device().alloc(bytes.len()).expect("memory");
        self.0.device().upload(at, bytes).expect("its own memory");
        at
    }

    fn floats(&mut self, x: &[f32]) -> Ptr {
        self.bytes(&f32_bytes(x))
    }

    fn integers(&mut self, x: &[u32]) -> Ptr {
        self.bytes(&x.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
    }

    fn alloc(&mut self, bytes: usize) -> Ptr {
        self.0.device().alloc(bytes).expect("memory")
    }

    fn words(&mut self, from: Ptr, n: usize) -> Vec<[u8; 4]> {
        let mut bytes = vec![0; 4 * n];
        self.0.device().download(from, &mut bytes).expect("its own memory");
        bytes.as_chunks::<4>().0.to_vec()
    }

    fn read(&mut self, from: Ptr, n: usize) -> Vec<f32> {
        self.words(from, n).into_iter().map(f32::from_le_bytes).collect()
    }

    fn read_integers(&mut self, from: Ptr, n: usize) -> Vec<u32> {
        self.words(from, n).into_iter().map(u32::from_le_bytes).collect()
    }

    fn try_run(&mut self, launch: &Launch) -> Result<(), Error> {
        // SAFETY: the tests allocate what the kernels' comments say; fences and NaNs show where they do not.
        #[allow(unsafe_code)]
        unsafe {
            self.0.device().launch(launch)
        }
    }

    fn run(&mut self, launch: &Launch) {
        self.try_run(launch).unwrap_or_else(|error| panic!("{error}"));
    }

    fn matrix(&mut self, (ty, rows, cols): (T, usize, usize), raw: &[u8]) -> Matrix {
        let packed = pack(ty, rows, cols, raw).expect("whole rows");
        let base = self.bytes(&packed.bytes);
        packed.layout.matrix(base)
    }

    /// `W x (+ add)` for rows of `x`, by the generation kernels.
    fn gemv(&mut self, (ty, rows, cols): (T, usize, usize), raw: &[u8], x: &[f32], add: Option<&[f32]>) -> Vec<f32> {
        let columns = x.len() / cols;
        let w = self.matrix((ty, rows, cols), raw);
        let arranged = self.alloc(launch::gemv_activation_bytes(ty, columns, cols));
        let x = self.floats(x);
        let arrange =
            Arrange { x, out: arranged, rows: columns as u32, cols: cols as u32, units: w.units, ..Arrange::default() };
        self.run(&launch::gemv_activations(ty, &arrange));
        let add = add.map_or(Ptr::NULL, |add| self.floats(add));
        let out = self.alloc(4 * columns * rows);
        self.run(&launch::gemv(ty, &Gemv { w, x: arranged, add, out, columns: columns as u32, unused: 0 }, 2));
        self.read(out, columns * rows)
    }

    /// The same by the prompt kernels.
    fn gemm(&mut self, (ty, rows, cols): (T, usize, usize), raw: &[u8], x: &[f32], add: Option<&[f32]>) -> Vec<f32> {
        let tokens = x.len() / cols;
        let w = self.matrix((ty, rows, cols), raw);
        let arranged = self.alloc(launch::gemm_activation_bytes(tokens, cols));
        let (x, scales) = (self.floats(x), self.alloc(4 * tokens));
        let (rows_n, cols_n) = (tokens as u32, cols as u32);
        self.run(&launch::gemm_activations(&Arrange {
            x,
            out: arranged,
            scales,
            rows: rows_n,
            cols: cols_n,
            units: w.units,
            unused: 0,
        }));
        let add = add.map_or(Ptr::NULL, |add| self.floats(add));
        let out = self.alloc(4 * tokens * rows);
        self.run(&launch::gemm(ty, &Gemm { w, x: arranged, scales, add, out, tokens: rows_n, unused: 0 }));
        self.read(out, tokens * rows)
    }
}

/// The worst of many comparisons.
#[derive(Default)]
struct Worst(f64, String);

impl Worst {
    fn see(&mut self, what: impl Fn() -> String, expected: f64, got: f32, bound: f64) {
        let ratio = (f64::from(got) - expected).abs() / bound;
        if ratio.is_nan() || ratio > self.0 {
            *self = Worst(ratio, format!("{}: expected {expected}, got {got}, bound {bound:e}", what()));
        }
    }

    fn check(&self, kernel: &str) {
        assert!(self.0 <= 1.0, "{kernel}: {} x bound: {}", self.0, self.1);
    }
}
