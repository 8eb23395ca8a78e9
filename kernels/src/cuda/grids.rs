//! The grids of the IQ formats as tables in CUDA's source text, for `cuda/grid_formats.cuh`.

use octavo_quant::grids;
use std::fmt::Write as _;

/// Returns the text of the header: a table for each grid, with an entry for each point, of a
/// nibble for each of its values. A nibble is the number of the value's level, from the least one
/// on.
pub(super) fn header() -> String {
    let mut text =
        "#ifndef OCTAVO_GRIDS\n#define OCTAVO_GRIDS\n#include \"compat.cuh\"\n".to_owned();
    let iq2 = [8, 25, 43];
    table(&mut text, "u32 IQ2_XXS_GRID", &grids::IQ2_XXS, &iq2);
    table(&mut text, "u32 IQ2_XS_GRID", &grids::IQ2_XS, &iq2);
    table(&mut text, "u32 IQ2_S_GRID", &grids::IQ2_S, &iq2);
    let iq3_xxs = [4, 12, 20, 28, 36, 44, 52, 62];
    table(&mut text, "u16 IQ3_XXS_GRID", &grids::IQ3_XXS, &iq3_xxs);
    let iq3_s = [1, 3, 5, 7, 9, 11, 13, 15];
    table(&mut text, "u16 IQ3_S_GRID", &grids::IQ3_S, &iq3_s);
    table(&mut text, "u32 IQ1_GRID", &grids::IQ1, &[-1, 0, 1]);
    text += "#endif\n";
    text
}

fn table<const N: usize>(text: &mut String, name: &str, points: &[[i8; N]], levels: &[i8]) {
    let level = |value: &i8| levels.iter().position(|level| level == value);
    let entry = |point: &[i8; N]| {
        let places = point.iter().enumerate();
        let nibble = |(i, value)| level(value).expect("a level of its grid") << (4 * i);
        places.map(nibble).sum::<usize>()
    };
    // writing to a string cannot fail
    let _ = writeln!(text, "CONSTANT {name}[{}] = {{", points.len());
    for points in points.chunks(8) {
        for point in points {
            let _ = write!(text, "{:#x}u,", entry(point));
        }
        text.push('\n');
    }
    text.push_str("};\n");
}
