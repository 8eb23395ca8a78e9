//! A tower on a device: from pixels to the rows that stand for a picture's cells.

use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_engine::backend::cpu::{self, Cpu};
use octavo_engine::backend::{Executable, Role, Sequence, Step, TapSink};
use octavo_engine::{Loading, Picture};
use octavo_kernels::{GivenRows, Isa, KvType, MERGED_ROWS, PAGE_POSITIONS};

use crate::Error;
use crate::pixels::Pixels;
use crate::tower::{Layout, Tower};

/// How to run a tower.
#[derive(Clone, Copy, Debug)]
pub struct EncoderOptions {
    /// Whose kernels.
    pub isa: Isa,
    /// Threads.
    pub threads: usize,
    /// Cells of a picture, at most.
    pub most_cells: usize,
}

/// What stands for a picture's cells.
#[derive(Clone, Debug, PartialEq)]
pub struct Cells {
    /// Cells across.
    pub nx: usize,
    /// And down.
    pub ny: usize,
    /// `[ny][nx][width]`, of the tower's width.
    pub rows: Vec<f32>,
}

impl Cells {
    /// What an engine is shown, with what tells the picture from others.
    pub fn picture(self, digest: [u8; 32]) -> Picture {
        Picture {
            nx: self.nx,
            ny: self.ny,
            rows: self.rows,
            digest,
        }
    }
}

/// Pages of the cache that a picture of so many cells takes.
pub fn pages(cells: usize) -> usize {
    (cells * MERGED_ROWS).div_ceil(PAGE_POSITIONS)
}

/// A tower, prepared.
pub struct Encoder {
    tower: Tower,
    file: String,
    executable: Box<dyn Executable>,
    most_cells: usize,
}

impl Encoder {
    /// Packs the tower's weights for the CPU.
    ///
    /// # Errors
    /// If the file is no tower that is known, or what it takes cannot be had.
    pub fn cpu(
        gguf: &Arc<Gguf>,
        options: &EncoderOptions,
        progress: &mut dyn FnMut(Loading<'_>),
    ) -> Result<Encoder, Error> {
        let most_cells = options.most_cells;
        let n_pages = pages(options.most_cells);
        let options = cpu::Options {
            isa: options.isa,
            threads: options.threads,
            kv_type: KvType::F32,
            n_pages,
            n_states: 0,
            repack: true,
        };
        Encoder::load_on(gguf, most_cells, |tower| {
            let mut weights = |done, total| progress(Loading::Weights { done, total });
            let cpu = Cpu::prepare(gguf, tower, &options, &mut weights)?;
            Ok(Box::new(cpu))
        })
    }

    /// On whatever `prepare` makes of the tower, with a cache of [`pages`] pages.
    ///
    /// # Errors
    /// If the file is no tower that is known, and what `prepare` says.
    pub fn load_on(
        gguf: &Gguf,
        most_cells: usize,
        prepare: impl FnOnce(&Tower) -> Result<Box<dyn Executable>, octavo_engine::Error>,
    ) -> Result<Encoder, Error> {
        let tower = Tower::load(gguf)?;
        let executable = prepare(&tower)?;
        Ok(Encoder {
            tower,
            file: gguf.name().to_owned(),
            executable,
            most_cells,
        })
    }

    /// The tower's file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// What it runs on, for people.
    pub fn describe(&self) -> String {
        self.executable.describe()
    }

    /// What is run.
    pub fn tower(&self) -> &Tower {
        &self.tower
    }

    /// Computes the rows of a picture; `tap` sees every named value, of patches in the tower's
    /// order.
    ///
    /// # Errors
    /// If its sides are not whole cells, it has more cells than there is room for, or the device
    /// fails.
    ///
    /// # Panics
    /// If the planes have more or fewer pixels than the sides say.
    pub fn encode(
        &mut self,
        pixels: Pixels<'_>,
        tap: Option<&mut TapSink<'_>>,
    ) -> Result<Cells, Error> {
        let Pixels {
            width,
            height,
            planes,
        } = pixels;
        let h = &self.tower.hparams;
        let unit = h.unit();
        let is_whole = |side: usize| side > 0 && side.is_multiple_of(unit);
        if !is_whole(width) || !is_whole(height) {
            return Err(Error::Sides {
                width,
                height,
                unit,
            });
        }
        assert_eq!(planes.len(), 3 * width * height, "pixels of a picture");
        let (nx, ny) = (width / unit, height / unit);
        if nx * ny > self.most_cells {
            return Err(Error::TooManyCells {
                got: nx * ny,
                most: self.most_cells,
            });
        }
        let layout = self.tower.layout(nx, ny);
        let rows = self.run(&layout, planes, tap)?;
        Ok(Cells { nx, ny, rows })
    }

    fn run(
        &mut self,
        layout: &Layout,
        planes: &[f32],
        tap: Option<&mut TapSink<'_>>,
    ) -> Result<Vec<f32>, Error> {
        let width = self.tower.width();
        let rows = self.rows(layout, planes, tap)?;
        let rows = layout.in_raster_order(rows, width);
        self.executable.rest();
        Ok(rows)
    }

    /// The tower's rows in its own order. What the step was given is gone before they are copied: of
    /// a large picture it is 100 MB and more.
    fn rows(
        &mut self,
        layout: &Layout,
        planes: &[f32],
        tap: Option<&mut TapSink<'_>>,
    ) -> Result<&[f32], Error> {
        let n = layout.places.len();
        let positions = self.tower.positions.as_ref();
        let positions = positions.map(|table| table.rows(layout));
        let given = positions
            .as_deref()
            .map(|rows| GivenRows { first: 0, rows });
        // a patch is no token
        let tokens = vec![0; n];
        let pages: Vec<u32> = (0..n.div_ceil(PAGE_POSITIONS) as u32).collect();
        let seqs = [Sequence {
            tokens: &tokens,
            tables: &[&pages],
            wanted: 0..n,
            turns: &layout.turns(),
            given: given.as_slice(),
            blocks: &layout.windows,
            ..Sequence::default()
        }];
        let step = Step {
            role: Role::Prompt,
            seqs: &seqs,
            input: &layout.pixels(planes, self.tower.hparams.patch),
        };
        Ok(self.executable.step(&step, tap)?)
    }
}
