//! Products of batches on tensor cores: the bits of decode products, whatever is computed beside.

use octavo_kernels::cuda::launch::{self, Form, IMMA_COLUMNS};
use octavo_kernels::cuda::pack::{UNIT, has_codes, is_packed, pack_experts};
use octavo_kernels::cuda::params::{ExpertImma, Gemv, GemvPart, SortExperts};
use octavo_kernels::cuda::shim::Schedule;
use octavo_kernels::cuda::{Launch, Ptr};
use octavo_quant::TensorType as T;

use super::{Bench, device};
use crate::common::{Rng, random_blocks, weight_types};

/// Lists every type with codes, including those that share a kernel.
fn types() -> impl Iterator<Item = T> {
    weight_types().filter(|ty| is_packed(*ty) && has_codes(*ty))
}

/// Returns column counts with whole and broken groups of units, and rows of one part and of four.
fn widths(ty: T) -> [usize; 4] {
    [1, 96, 1024 + 32, 8192 + 32].map(|n: usize| n.next_multiple_of(ty.block_len()))
}

/// Results of a launch: the outputs of its parts, or the integers that it leaves.
fn outputs(bench: &mut Bench, p: &Gemv, launches: &[Launch]) -> Vec<u32> {
    for launch in launches {
        bench.run(launch);
    }
    let columns = p.columns as usize;
    if p.integers != Ptr::NULL {
        let rows = p.parts[0].w.rows as usize;
        let bytes = launch::activation_bytes(Form::Integers, columns, rows);
        return bench.read_integers(p.integers, bytes / 4);
    }
    let matrices = if p.gated != 0 { 1 } else { 3 };
    let parts = p.parts[..matrices].iter().filter(|part| part.w.rows > 0);
    let parts: Vec<_> = parts
        .map(|part| (part.out, part.w.rows as usize * columns))
        .collect();
    parts
        .into_iter()
        .flat_map(|(out, n)| bench.read_integers(out, n))
        .collect()
}

/// Launches of `gemv` for one column after another.
fn column_by_column(ty: T, p: &Gemv) -> Vec<Launch> {
    let alone = |column: u64| {
        let mut p = Gemv { columns: 1, ..*p };
        let cols = p.parts[0].w.cols as usize;
        let rows = p.parts[0].w.rows as usize;
        for part in &mut p.parts {
            let before = 4 * column * u64::from(part.w.rows);
            part.out = part.out.or_offset(before);
            part.add = part.add.or_offset(before);
        }
        let before = |cols| launch::activation_bytes(Form::Integers, column as usize, cols) as u64;
        p.x = p.x.offset(before(cols));
        p.integers = p.integers.or_offset(before(rows));
        launch::gemv(ty, &p, 2)
    };
    (0..u64::from(p.columns)).map(alone).collect()
}

/// Whether each part has an addend, whether they are a gate and what it gates, and whether the
/// results are left as integers.
#[derive(Clone, Copy, Debug)]
enum Epilogue {
    Add,
    Gated(u32),
    Integers(u32),
}

/// Creates the parameters of a product, with memory for its results.
fn product(
    bench: &mut Bench,
    (ty, rows, cols): (T, &[usize], usize),
    columns: usize,
    epilogue: Epilogue,
) -> Gemv {
    let mut rng = Rng((cols * 5 + columns) as u64 ^ u64::from(ty.id()));
    let x = rng.floats(columns * cols);
    let x = bench.arranged(Form::Integers, &x, cols);
    let mut parts = [GemvPart::default(); 3];
    for (part, rows) in parts.iter_mut().zip(rows) {
        let raw = random_blocks(&mut rng, ty, rows * cols);
        part.w = bench.matrix((ty, *rows, cols), &raw);
        if let Epilogue::Add = epilogue {
            part.add = bench.floats(&rng.floats(columns * rows));
        }
    }
    Gemv {
        parts,
        x,
        columns: columns as u32,
        gated: match epilogue {
            Epilogue::Add => 0,
            Epilogue::Gated(kind) | Epilogue::Integers(kind) => kind,
        },
        ..Gemv::default()
    }
}

/// Gives the results fresh memory, which is all NaN.
fn with_room(bench: &mut Bench, p: &Gemv, epilogue: Epilogue) -> Gemv {
    let mut p = *p;
    let columns = p.columns as usize;
    for part in &mut p.parts {
        if part.w.rows > 0 {
            part.out = bench.alloc(4 * columns * part.w.rows as usize);
        }
    }
    if let Epilogue::Integers(_) = epilogue {
        let rows = p.parts[0].w.rows as usize;
        let bytes = launch::activation_bytes(Form::Integers, columns, rows);
        p.integers = bench.alloc(bytes);
    }
    p
}

/// Checks that both tile sizes give the bits of `gemv`, in all thread orders.
fn check(bench: &mut Bench, shape: (T, &[usize], usize), columns: usize, epilogue: Epilogue) {
    let (ty, rows, cols) = shape;
    let p = product(bench, shape, columns, epilogue);
    let expected = with_room(bench, &p, epilogue);
    let expected = outputs(bench, &expected, &column_by_column(ty, &expected));
    for (i, schedule) in bench.0.schedules().iter().enumerate() {
        bench.0.schedule(*schedule);
        let got = with_room(bench, &p, epilogue);
        let launch = &launch::imma_in_all_tiles(ty, &got)[i % 2];
        let got = outputs(bench, &got, std::slice::from_ref(launch));
        let different = expected.iter().zip(&got).filter(|(a, b)| a != b).count();
        assert!(
            different == 0 && expected.len() == got.len(),
            "{ty}, {rows:?} x {cols}, {columns} columns, {epilogue:?}, {schedule:?}, {}: \
             {different} of {} words differ",
            launch.kernel,
            expected.len()
        );
    }
    bench.0.schedule(Schedule::Forward);
    bench.0.clear();
}

#[test]
fn batches_have_the_bits_of_single_columns() {
    let Some(mut bench) = device() else { return };
    for (k, ty) in types().enumerate() {
        for (i, cols) in widths(ty).into_iter().enumerate() {
            let columns = [3, 8, 11, IMMA_COLUMNS][(i + k) % 4];
            let rows: &[usize] = [&[1][..], &[70], &[33, 5], &[19, 64, 2]][(i + k / 4) % 4];
            check(&mut bench, (ty, rows, cols), columns, Epilogue::Add);
        }
    }
}

#[test]
fn gates_and_integers_have_the_bits_of_single_columns() {
    let Some(mut bench) = device() else { return };
    for (k, ty) in types().enumerate() {
        let cols = (5 * UNIT).next_multiple_of(ty.block_len());
        let kind = 1 + k as u32 % 3;
        for (epilogue, rows, columns) in [
            (Epilogue::Gated(kind), 70, 5 + k % 4),
            (Epilogue::Integers(kind), 100, 9 + k % 8),
        ] {
            check(&mut bench, (ty, &[rows, rows], cols), columns, epilogue);
        }
    }
}

impl Bench {
    /// Multiplies rows of `x` by the experts `ids`, in tiles of choices; `sharing` of these share
    /// one input.
    fn expert_imma(
        &mut self,
        (ty, experts, n, cols): (T, usize, usize, usize),
        raw: &[u8],
        x: &[f32],
        ids: &[f32],
        sharing: usize,
    ) -> Vec<f32> {
        let packed = pack_experts(ty, experts, experts * n, cols, raw).expect("whole rows");
        let base = self.bytes(&packed.bytes);
        let shape @ [width, tiles] = launch::expert_tiles(ids.len(), experts);
        let sort = SortExperts {
            ids: self.floats(ids),
            order: self.alloc(4 * ids.len()),
            tiles: self.alloc(launch::EXPERT_TILE_BYTES * tiles),
            choices: ids.len() as u32,
            experts: experts as u32,
            width: width as u32,
            unused: 0,
        };
        self.run(&launch::sort_experts(&sort));
        let p = ExpertImma {
            w: packed.layout.matrix(base),
            x: self.arranged(Form::Integers, x, cols),
            order: sort.order,
            tiles: sort.tiles,
            out: self.alloc(4 * ids.len() * n),
            n: n as u32,
            sharing: sharing as u32,
        };
        self.run(&launch::expert_imma(ty, &p, shape));
        self.read(p.out, ids.len() * n)
    }
}

/// The chosen experts in any number: every choice stands once in the order, and in one tile, whose
/// expert it chose.
#[test]
fn choices_are_sorted_by_expert_and_dealt_to_tiles() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(21);
    for (choices, experts, width) in [
        (6, 4, 8),
        (1, 1, 8),
        (700, 3, 16),
        (259, 128, 8),
        (24, 64, 8),
    ] {
        for schedule in bench.0.schedules() {
            bench.0.schedule(*schedule);
            // ids that are no numbers of experts, too
            let any = |i: usize| match i % 97 {
                7 => f32::NAN,
                8 => 1e9,
                _ => (rng.bits() % experts as u64) as f32,
            };
            let ids: Vec<f32> = (0..choices).map(any).collect();
            let tiles = choices / width + experts;
            let p = SortExperts {
                ids: bench.floats(&ids),
                order: bench.alloc(4 * choices),
                tiles: bench.alloc(launch::EXPERT_TILE_BYTES * tiles),
                choices: choices as u32,
                experts: experts as u32,
                width: width as u32,
                unused: 0,
            };
            bench.run(&launch::sort_experts(&p));
            let order = bench.read_integers(p.order, choices);
            let words = bench.read_integers(p.tiles, 4 * tiles);
            let mut seen = vec![0; choices];
            for tile in words.chunks_exact(4) {
                let [expert, first, n, _] =
                    [tile[0], tile[1], tile[2], tile[3]].map(|w| w as usize);
                assert!(n <= width, "a tile of {n} choices");
                for choice in order.iter().skip(first).take(n).map(|i| *i as usize) {
                    let id = ids[choice];
                    let chosen = if id > 0.0 {
                        (id as usize).min(experts - 1)
                    } else {
                        0
                    };
                    assert_eq!(chosen, expert, "choice {choice}: {id}");
                    seen[choice] += 1;
                }
            }
            assert!(seen.iter().all(|n| *n == 1), "{seen:?}");
            bench.0.clear();
        }
    }
}

/// Experts by tiles of choices give the bits of experts one choice after another.
#[test]
fn batches_of_choices_have_the_bits_of_single_ones() {
    let Some(mut bench) = device() else { return };
    let types = weight_types().filter(|ty| is_packed(*ty) && has_codes(*ty));
    for (k, ty) in types.enumerate() {
        let mut rng = Rng(u64::from(ty.id()) + 31);
        let cols = if ty == T::Q4_K {
            8448
        } else {
            288usize.next_multiple_of(ty.block_len())
        };
        for (experts, n, choices, sharing) in [(3, 70, 40, 2), (5, 20, 11, 1)] {
            let schedules = bench.0.schedules();
            bench.0.schedule(schedules[k % schedules.len()]);
            let raw = random_blocks(&mut rng, ty, experts * n * cols);
            let ids: Vec<f32> = (0..choices)
                .map(|_| (rng.bits() % experts as u64) as f32)
                .collect();
            let x = rng.floats(choices / sharing * cols);
            let shape = (ty, experts, n, cols);
            let expected = bench.expert_gemv(shape, &raw, &x, &ids, sharing);
            let got = bench.expert_imma(shape, &raw, &x, &ids, sharing);
            let mut pairs = expected.iter().zip(&got);
            assert!(
                pairs.all(|(a, b)| a.to_bits() == b.to_bits()),
                "{ty}, {experts} experts of {n} rows, {choices} choices"
            );
            bench.0.clear();
        }
    }
}
