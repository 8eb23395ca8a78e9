//! A tower on a device: from pixels to the rows that stand for a picture's cells.

use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_engine::backend::cuda::Limits;
use octavo_engine::backend::{Executable, Role, Sequence, Step, TapSink};
use octavo_engine::{EngineOptions, LoadingSink, Picture, Placement};
use octavo_kernels::{GivenRows, KvType, MERGED_ROWS, PAGE_POSITIONS, PromptBits};

use crate::Error;
use crate::pixels::Pixels;
use crate::tower::{Layout, Tower};

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

/// What a tower is prepared for: one step, of a picture of at most so many cells.
pub fn limits(most_cells: usize) -> Limits {
    let patches = most_cells * MERGED_ROWS;
    Limits {
        rows: patches,
        wanted: patches,
        sequences: 1,
        positions: patches,
        n_pages: patches.div_ceil(PAGE_POSITIONS),
        states: 0,
    }
}

/// A tower, prepared.
pub struct Encoder {
    tower: Tower,
    file: String,
    executable: Box<dyn Executable>,
    most_cells: usize,
}

impl Encoder {
    /// Prepares a tower for pictures of so many cells, on the device of the options.
    ///
    /// # Errors
    /// If the file is no tower that is known, or what it takes cannot be had.
    pub fn load(
        gguf: &Arc<Gguf>,
        options: &EngineOptions,
        most_cells: usize,
        sink: &mut LoadingSink<'_>,
    ) -> Result<Encoder, Error> {
        let options = EngineOptions {
            kv_type: KvType::F32.both(),
            prompt_bits: PromptBits::default(),
            ..options.clone()
        };
        Encoder::load_on(gguf, most_cells, |tower| {
            let placement = Placement::new(&options, &limits(most_cells))?;
            placement.prepare(gguf, tower, sink)
        })
    }

    /// On whatever `prepare` makes of the tower, for the steps and the cache of [`limits`].
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

    /// The tower's rows in its own order. What the step was given is gone before they are copied:
    /// of a large picture it is 100 MB and more.
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
