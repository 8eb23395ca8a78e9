//! Report of an image encoder (vision tower), and its output for an image.

use std::fmt::{Result, Write};
use std::path::Path;
use std::time::Instant;

use octavo_engine::EngineOptions;
use octavo_vision::Tower;
use octavo_vision::pixels::{Prepared, Size, Tile};

use super::super::arrays::{self, Array};
use super::super::failure::{Exit, Failure};
use super::super::output::{IMAGE_PRODUCER, Inputs, Kind, Output};
use super::super::vision::{self, encoder, of_image};
use super::super::{signal, terminal};
use super::InspectArgs;

/// Writes the section.
pub(super) fn write(out: &mut String, tower: &Tower) -> Result {
    let h = &tower.hparams;
    let mut line = |name: &str, text: String| writeln!(out, "  {name:<10} {text}");
    let gated = match tower.graph.taps().any(|(tap, _)| tap.name == "ffn_gate") {
        true => "gated by",
        false => "with",
    };
    line(
        "tower",
        format!(
            "{}, {} blocks, width {}, feed-forward {} ({gated} {})",
            h.projector.name(),
            h.n_block,
            h.n_embd,
            h.n_ff,
            h.feature.name()
        ),
    )?;
    let (heads, head_dim) = (h.n_head, h.head_dim());
    let seen = match h.windows {
        None => "every patch attends to the whole image".to_owned(),
        Some(windows) => format!(
            "in windows of {side} x {side} image tokens, but in every {}. block",
            windows.whole_every,
            side = windows.side
        ),
    };
    line(
        "attention",
        format!("heads {heads}, head_dim {head_dim}, {seen}"),
    )?;
    line(
        "pixels",
        format!(
            "patches of {patch} x {patch}, image tokens of {unit} x {unit}, mean {:?}, \
             deviation {:?}",
            h.mean,
            h.std,
            patch = h.patch,
            unit = h.unit()
        ),
    )?;
    let deep = match &h.deepstack[..] {
        [] => String::new(),
        blocks => format!(", and as many behind each of blocks {blocks:?}"),
    };
    line(
        "rows",
        format!(
            "one for each image token: {} values for the text model{deep}",
            h.n_projected
        ),
    )
}

/// Writes the encoded image.
pub(super) fn dump(
    args: &InspectArgs,
    options: &EngineOptions,
    image: &Path,
    dump: &Path,
) -> std::result::Result<Exit, Failure> {
    let Some(path) = args.model.path()? else {
        return Err(Failure::Usage(
            "--image: expected MODEL, the file of a vision tower".to_owned(),
        ));
    };
    let token_limits = args.image_tokens.limits()?;
    let inputs = Inputs::default().model(Some(path)).file(Some(image));
    let output = Output {
        path: dump,
        kind: Kind::Image,
        force: args.force,
        inputs: &inputs,
    };
    output.check()?;
    signal::install()?;
    let mut encoder = encoder(path, token_limits, options)?;
    let decoded = vision::image(image)?;
    let prepared = Prepared::new(&decoded, &encoder.tower().hparams, token_limits);
    let prepared = prepared.map_err(|error| of_image(image, &error))?;
    let start = Instant::now();
    let encoded = encoder
        .image(&prepared, [0; 32])
        .map_err(|error| of_image(image, &error))?;
    let took = start.elapsed().as_secs_f64();
    let (tiles, size) = (prepared.tiles.len(), prepared.tiles[0].image.size());
    // some encoders see an overview of another size
    let is_tile = |tile: &&Tile| tile.image.size() == size;
    let same = prepared.tiles.iter().take_while(is_tile).count();
    let of_tiles = [same, 3, size.height, size.width];
    let pixels: Vec<f32> = prepared.tiles[..same]
        .iter()
        .flat_map(|tile| &tile.planes)
        .copied()
        .collect();
    let shape = [encoded.n_tokens(), encoder.tower().width()];
    let mut arrays = vec![
        // a single picture has no number
        Array::floats("pixels", &of_tiles[usize::from(tiles == 1)..], &pixels),
        Array::floats("embeddings", &shape, &encoded.rows),
    ];
    arrays.extend(prepared.tiles[same..].iter().map(|tile| {
        let Size { width, height } = tile.image.size();
        Array::floats("overview", &[3, height, width], &tile.planes)
    }));
    output.write_with(|out| arrays::write(IMAGE_PRODUCER, &arrays, out))?;
    let [columns, rows] = prepared.grid;
    let cut = match tiles {
        1 => String::new(),
        n => format!("{n} tiles, {columns} x {rows} and an overview, of "),
    };
    let tokens = match encoded.ny {
        1 => encoded.n_tokens().to_string(),
        ny => format!("{} x {ny}", encoded.nx),
    };
    terminal::note(&format!(
        "octavo: wrote {}: {cut}{} x {} pixels, {tokens} image tokens, encoded in {took:.2} s on \
         {}",
        dump.display(),
        size.width,
        size.height,
        encoder.describe()
    ));
    Ok(Exit::Done)
}
