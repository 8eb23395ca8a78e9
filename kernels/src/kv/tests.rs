use super::*;
use crate::memory::LARGE;
use octavo_simd::kv_layout::KvType;

/// Number of layers that touch a new large page when they write the given page.
fn layers_that_begin(shape: &KvShape, n_pages: usize, page: usize) -> usize {
    let (n_layer, [shape, _]) = (shape.n_layer, shape.halves());
    let pitch = shape.layer_pages(n_pages, LARGE);
    let large = |layer: usize, page: usize| (layer * pitch + page) * shape.page_stride() / LARGE;
    let begins = |layer: &usize| large(*layer, page) != large(*layer, page - 1);
    (0..n_layer).filter(begins).count()
}

#[test]
fn layers_do_not_want_large_pages_at_once() {
    for (n_layer, n_head_kv, head_dim) in [(28, 8, 128), (30, 3, 64), (36, 8, 128), (61, 1, 576)] {
        let shape = KvShape {
            n_layer,
            n_head_kv,
            head_dim,
            types: KvType::F16.both(),
        };
        let in_large = LARGE / shape.halves()[0].page_stride();
        for n_pages in [in_large, 500, 1000, 8192] {
            let unused = shape.halves()[0].layer_pages(n_pages, LARGE) - n_pages;
            assert!(unused < in_large, "{shape:?}: {unused} of {n_pages} unused");
            let most = (1..n_pages)
                .map(|page| layers_that_begin(&shape, n_pages, page))
                .max();
            assert!(
                most <= Some(n_layer.div_ceil(8)),
                "{shape:?}, {n_pages} pages: {most:?} layers at once"
            );
        }
    }
}

#[test]
fn small_caches_have_nothing_between_layers() {
    let shape = KvShape {
        n_layer: 4,
        n_head_kv: 2,
        head_dim: 64,
        types: KvType::F16.both(),
    };
    for n_pages in [0, 1, 100] {
        assert_eq!(shape.halves()[0].layer_pages(n_pages, LARGE), n_pages);
    }
}
