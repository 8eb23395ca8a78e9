//! Tests the CUDA kernels on the CPU (or on a GPU, see `common/device.rs`) against the oracle:
//! every kernel, odd shapes, three thread orders. And tests the shim itself: planted faults must be
//! detected.

mod attention;
mod batches;
mod copies;
mod experts;
mod faults;
mod fused;
mod host;
mod probe;
mod products;
mod recurrence;
mod rows;

use crate::common::device::{Machine, machine, shim};
use crate::common::f32_bytes;
use octavo_kernels::cuda::launch::Form;
use octavo_kernels::cuda::pack::{UNIT, pack};
use octavo_kernels::cuda::params::{Arrange, Gemm, Gemv, GemvPart, Matrix};
use octavo_kernels::cuda::shim::Sources;
use octavo_kernels::cuda::{Error, Launch, Ptr, launch};
use octavo_quant::TensorType as T;

/// Opens the test device, if there is one.
pub(crate) fn device() -> Option<Bench> {
    machine(env!("CARGO_TARGET_TMPDIR")).map(Bench)
}

/// Creates the CPU shim with modified sources.
fn device_of(sources: Sources) -> Option<Bench> {
    shim(env!("CARGO_TARGET_TMPDIR"), sources).map(|shim| Bench(Machine::Shim(Box::new(shim))))
}

pub(crate) struct Bench(pub(crate) Machine);

/// A method of [`Bench`] that multiplies: type and shape of the weights, their blocks, input rows,
/// and addend.
type Product = fn(&mut Bench, (T, usize, usize), &[u8], &[f32], Option<&[f32]>) -> Vec<f32>;

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
        self.0
            .device()
            .download(from, &mut bytes)
            .expect("its own memory");
        bytes.as_chunks::<4>().0.to_vec()
    }

    fn read(&mut self, from: Ptr, n: usize) -> Vec<f32> {
        self.words(from, n)
            .into_iter()
            .map(f32::from_le_bytes)
            .collect()
    }

    fn read_integers(&mut self, from: Ptr, n: usize) -> Vec<u32> {
        self.words(from, n)
            .into_iter()
            .map(u32::from_le_bytes)
            .collect()
    }

    fn try_run(&mut self, launch: &Launch) -> Result<(), Error> {
        // SAFETY: the tests allocate what the kernels' comments require; guard regions and NaNs
        // show violations.
        #[allow(unsafe_code)]
        unsafe {
            self.0.device().launch(launch)
        }
    }

    fn run(&mut self, launch: &Launch) {
        self.try_run(launch)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    fn matrix(&mut self, (ty, rows, cols): (T, usize, usize), raw: &[u8]) -> Matrix {
        let packed = pack(ty, rows, cols, raw).expect("whole rows");
        let base = self.bytes(&packed.bytes);
        packed.layout.matrix(base)
    }

    /// Computes `W x (+ add)` for rows of `x`, by the decode kernels.
    fn gemv(
        &mut self,
        shape: (T, usize, usize),
        raw: &[u8],
        x: &[f32],
        add: Option<&[f32]>,
    ) -> Vec<f32> {
        self.by_gemv(launch::gemv, shape, raw, x, add)
    }

    /// Computes the same by the kernels of batches.
    fn imma(
        &mut self,
        shape: (T, usize, usize),
        raw: &[u8],
        x: &[f32],
        add: Option<&[f32]>,
    ) -> Vec<f32> {
        self.by_gemv(launch::imma, shape, raw, x, add)
    }

    fn by_gemv(
        &mut self,
        launch: fn(T, &Gemv, u32) -> Launch,
        (ty, rows, cols): (T, usize, usize),
        raw: &[u8],
        x: &[f32],
        add: Option<&[f32]>,
    ) -> Vec<f32> {
        let columns = x.len() / cols;
        let w = self.matrix((ty, rows, cols), raw);
        let x = self.arranged(Form::of_gemv(ty), x, cols);
        let add = add.map_or(Ptr::NULL, |add| self.floats(add));
        let out = self.alloc(4 * columns * rows);
        let parts = [
            GemvPart { w, add, out },
            GemvPart::default(),
            GemvPart::default(),
        ];
        let p = Gemv {
            parts,
            x,
            columns: columns as u32,
            ..Gemv::default()
        };
        self.run(&launch(ty, &p, 2));
        self.read(out, columns * rows)
    }

    /// Converts rows to a form that products read.
    fn arranged(&mut self, form: Form, x: &[f32], cols: usize) -> Ptr {
        let p = self.arrangement(form, x, cols);
        self.run(&launch::activations(form, &p));
        p.out
    }

    /// Creates the parameters for that.
    fn arrangement(&mut self, form: Form, x: &[f32], cols: usize) -> Arrange {
        let rows = x.len() / cols;
        Arrange {
            x: self.floats(x),
            out: self.alloc(launch::activation_bytes(form, rows, cols)),
            scales: self.alloc(4 * rows),
            rows: rows as u32,
            cols: cols as u32,
            units: cols.div_ceil(UNIT) as u32,
            ..Arrange::default()
        }
    }

    /// Computes the same by the prefill kernels, in small tiles.
    fn gemm(
        &mut self,
        shape: (T, usize, usize),
        raw: &[u8],
        x: &[f32],
        add: Option<&[f32]>,
    ) -> Vec<f32> {
        self.gemm_on(1 << 20, shape, raw, x, add)
    }

    /// Computes the same in large tiles.
    fn gemm_large(
        &mut self,
        shape: (T, usize, usize),
        raw: &[u8],
        x: &[f32],
        add: Option<&[f32]>,
    ) -> Vec<f32> {
        self.gemm_on(0, shape, raw, x, add)
    }

    /// Computes the same in the tiles for a device with this many multiprocessors.
    fn gemm_on(
        &mut self,
        multiprocessors: u32,
        (ty, rows, cols): (T, usize, usize),
        raw: &[u8],
        x: &[f32],
        add: Option<&[f32]>,
    ) -> Vec<f32> {
        let p = self.gemm_params(Form::Halves, (ty, rows, cols), raw, x, add);
        self.run(&launch::gemm(ty, &p, multiprocessors));
        self.read(p.out, x.len() / cols * rows)
    }

    /// Computes the same by the prefill kernels with warpgroup matrix multiply.
    fn wide_gemm(
        &mut self,
        (ty, rows, cols): (T, usize, usize),
        raw: &[u8],
        x: &[f32],
        add: Option<&[f32]>,
    ) -> Vec<f32> {
        let p = self.gemm_params(Form::WideHalves, (ty, rows, cols), raw, x, add);
        self.run(&launch::wide_gemm(ty, &p, 2));
        self.read(p.out, x.len() / cols * rows)
    }

    /// Creates the parameters of a product with the rows of `x`, converted to a form.
    fn gemm_params(
        &mut self,
        form: Form,
        (ty, rows, cols): (T, usize, usize),
        raw: &[u8],
        x: &[f32],
        add: Option<&[f32]>,
    ) -> Gemm {
        let tokens = x.len() / cols;
        let arrange = self.arrangement(form, x, cols);
        self.run(&launch::activations(form, &arrange));
        Gemm {
            w: self.matrix((ty, rows, cols), raw),
            x: arrange.out,
            scales: arrange.scales,
            add: add.map_or(Ptr::NULL, |add| self.floats(add)),
            out: self.alloc(4 * tokens * rows),
            tokens: tokens as u32,
            unused: 0,
        }
    }
}

/// Worst of many comparisons, with its description.
#[derive(Default)]
struct Worst(f64, String);

impl Worst {
    fn see(&mut self, what: impl Fn() -> String, expected: f64, got: f32, bound: f64) {
        let ratio = (f64::from(got) - expected).abs() / bound;
        if ratio.is_nan() || ratio > self.0 {
            *self = Worst(
                ratio,
                format!(
                    "{}: expected {expected}, got {got}, bound {bound:e}",
                    what()
                ),
            );
        }
    }

    fn check(&self, kernel: &str) {
        assert!(self.0 <= 1.0, "{kernel}: {} x bound: {}", self.0, self.1);
    }
}
