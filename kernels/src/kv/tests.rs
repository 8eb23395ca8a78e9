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

#[test]
fn pages_and_states_come_back_as_they_were() {
    let shape = |types, head_dim| KvShape {
        n_layer: 3,
        n_head_kv: 2,
        head_dim,
        types,
    };
    let shapes = [
        shape(KvType::F16.both(), 64),
        shape(KvType::Q8_0.both(), 32),
    ];
    let store = KvStore::new(&shapes, 5).expect("memory");
    let mut store = store.with_states(&[7, 6], 3).expect("memory");
    assert_eq!(store.page_bytes(0), 3 * 2 * 2 * 64 * PAGE * 2);
    assert_eq!(store.state_bytes(), 13 * 4);
    let bytes =
        |n: usize, seed: usize| -> Vec<u8> { (0..n).map(|i| (i * 31 + seed * 7) as u8).collect() };
    for group in 0..2 {
        let n = store.page_bytes(group);
        (0..5).for_each(|page| store.write_page(group, page, &bytes(n, page as usize)));
        store.copy_page(group, 1, 4);
    }
    (0..3).for_each(|slot| store.write_state(slot, &bytes(13 * 4, slot as usize)));
    for group in 0..2 {
        for (page, seed) in [0, 1, 2, 3, 1].into_iter().enumerate() {
            let mut read = vec![1];
            store.read_page(group, page as u32, &mut read);
            assert_eq!(
                read[1..],
                bytes(store.page_bytes(group), seed),
                "{group} {page}"
            );
        }
    }
    for slot in 0..3 {
        let mut read = Vec::new();
        store.read_state(slot, &mut read);
        assert_eq!(read, bytes(13 * 4, slot as usize));
    }
}
