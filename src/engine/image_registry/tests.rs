//! Ids, positions and inputs of images.

use super::*;

fn image(nx: usize, ny: usize, seed: u8) -> EncodedImage {
    EncodedImage {
        nx,
        ny,
        rows: (0..2 * nx * ny)
            .map(|i| i as f32 + f32::from(seed))
            .collect(),
        digest: [seed; 32],
        ..EncodedImage::default()
    }
}

/// Returns a registry of a model with image axes.
fn with_axes() -> ImageRegistry {
    ImageRegistry {
        has_axes: true,
        ..ImageRegistry::default()
    }
}

/// Returns a registry of a model in which tokens of an image attend to each other.
fn of_whole_images() -> ImageRegistry {
    ImageRegistry {
        sees_whole_images: true,
        factor: 2.0,
        ..ImageRegistry::default()
    }
}

#[test]
fn equal_images_have_equal_ids_and_others_have_others() {
    let images = ImageRegistry::default();
    let register = |p| images.register(p).expect("ids are left");
    let (a, b) = (register(image(3, 2, 1)), register(image(2, 2, 2)));
    assert_eq!(a.tokens(), FIRST_IMAGE_TOKEN..FIRST_IMAGE_TOKEN + 6);
    assert_eq!(b.tokens(), FIRST_IMAGE_TOKEN + 7..FIRST_IMAGE_TOKEN + 11);
    assert_eq!(register(image(3, 2, 1)).tokens(), a.tokens());
    // the same file in another size
    assert_eq!(
        register(image(2, 3, 1)).tokens().start,
        FIRST_IMAGE_TOKEN + 12
    );
    let first = a.tokens().start;
    drop(a);
    let error = images.input(&[], &[first]).expect_err("it is gone");
    assert!(matches!(error, Error::ImageNotHeld { id } if id == first));
    assert_eq!(register(image(3, 2, 1)).tokens().start, first);
}

#[test]
fn text_goes_on_behind_the_longer_side() {
    let images = with_axes();
    let handle = images.register(image(3, 2, 1)).expect("ids are left");
    let mut tokens = vec![7, 8];
    tokens.extend(handle.tokens());
    tokens.push(9);
    // the same image twice more, one right behind the other
    tokens.extend(handle.tokens());
    tokens.extend(handle.tokens());
    tokens.push(5);
    let all = images.input(&[], &tokens).expect("it is held");
    let at =
        |t: u32| [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]].map(|[y, x]| [t, t + y, t + x]);
    let expected = [
        &[[0; 3], [1; 3]][..],
        &at(2),
        &[[5; 3]],
        &at(6),
        &at(9),
        &[[12; 3]],
    ]
    .concat();
    assert_eq!(all.rope_positions, expected);
    let inputs = all.embedding_inputs();
    assert_eq!(inputs.len(), 3);
    assert_eq!(inputs[0].first, 2);
    assert_eq!(inputs[0].rows, handle.image().rows);
    // any cut gives the same
    for cut in 0..=tokens.len() {
        let (before, rest) = tokens.split_at(cut);
        let part = images.input(before, rest).expect("it is held");
        assert_eq!(part.rope_positions, expected[cut..], "after {cut}");
        let rows = |input: &MultimodalInput| -> usize {
            input
                .embedding_inputs()
                .iter()
                .map(|rows| rows.rows.len())
                .sum()
        };
        let tokens = rest.iter().filter(|id| is_image_token(**id)).count();
        assert_eq!(rows(&part), 2 * tokens, "after {cut}");
    }
}

#[test]
fn a_cut_inside_of_a_image_is_seen() {
    let images = ImageRegistry::default();
    let handle = images.register(image(3, 1, 1)).expect("ids are left");
    let mut tokens = vec![7, 8];
    tokens.extend(handle.tokens());
    tokens.extend(handle.tokens());
    let before: Vec<usize> = (0..8).map(|at| image_tokens_before(&tokens, at)).collect();
    assert_eq!(before, [0, 0, 0, 1, 2, 0, 1, 2]);
}

#[test]
fn images_that_see_themselves_are_not_cut() {
    let images = of_whole_images();
    let register = |seed, bidirectional| {
        let image = EncodedImage {
            bidirectional,
            ..image(3, 2, seed)
        };
        images.register(image).expect("ids are left")
    };
    let (whole, causal) = (register(1, true), register(2, false));
    assert_eq!(whole.image().rows[..2], [0.5, 1.0], "without the factor");
    let mut tokens = vec![7, 8];
    tokens.extend(whole.tokens());
    tokens.extend(causal.tokens());
    tokens.push(9);
    // 7 8 | six of an image | six of another one | 9
    let steps = |from: usize| {
        (1..=5)
            .map(|n| with_whole_images(&tokens, from, n))
            .collect()
    };
    let (start, in_image, behind): (Vec<_>, Vec<_>, Vec<_>) = (steps(0), steps(4), steps(8));
    assert_eq!(start, [1, 2, 2, 2, 2]);
    assert_eq!(in_image, [4, 4, 4, 4, 5], "the first two are cached");
    assert_eq!(behind, [1, 2, 3, 4, 5]);
    assert_eq!(with_whole_images(&tokens, 2, 3), 6);
    assert_eq!(with_whole_images(&tokens, 0, 15), 15);
    let all = images.input(&[], &tokens).expect("it is held");
    assert!(all.rope_positions.is_empty());
    assert_eq!(all.images.iter().collect::<Vec<_>>(), [&(2..8)]);
    let rest = images
        .input(&tokens[..4], &tokens[4..])
        .expect("it is held");
    assert_eq!(rest.images.iter().collect::<Vec<_>>(), [&(0..4)]);
    let error = images.input(&[], &tokens[..7]).expect_err("it is cut");
    assert!(matches!(error, Error::ImageCut { end: 5, tokens: 6 }));
}

#[test]
fn texts_alone_turn_by_their_places() {
    let input = ImageRegistry::default()
        .input(&[1, 2], &[3])
        .expect("no image");
    assert!(input.rope_positions.is_empty() && input.embedding_inputs().is_empty());
}

/// Ids are given in order of arrival, which another program need not share.
#[test]
fn contents_are_equal_in_all_registries() {
    let (one, other) = (ImageRegistry::default(), ImageRegistry::default());
    let register = |images: &ImageRegistry, p| images.register(p).expect("ids are left");
    let first = register(&one, image(3, 2, 1));
    let _before = register(&other, image(3, 2, 7));
    let second = register(&other, image(3, 2, 1));
    assert_ne!(first.tokens(), second.tokens());
    for (place, (a, b)) in (0..).zip(first.tokens().zip(second.tokens())) {
        let content = one.content_of(a).expect("it is held");
        assert_eq!(content.1, place);
        assert_eq!(other.content_of(b), Some(content));
    }
    // other rows of the same file, as another encoder has them, and another shape of equal rows
    let content = one.content_of(first.tokens().start);
    let mut rows = image(3, 2, 1);
    rows.rows[5] += 1.0;
    for image in [rows, image(2, 3, 1)] {
        let images = ImageRegistry::default();
        let handle = register(&images, image);
        assert_ne!(images.content_of(handle.tokens().start), content);
    }
    let start = first.tokens().start;
    drop(first);
    assert_eq!(one.content_of(start), None);
}
