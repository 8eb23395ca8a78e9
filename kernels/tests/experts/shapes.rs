//! Invalid shapes are refused before anything runs.

use octavo_kernels::{
    CacheShape, MatrixShape, Op, RowSet, ShapeError, Shapes, TopGroups, ValueShape,
};

/// Value `n` has width `n % 1000`; those from 1000 on have only the rows with outputs.
struct Numbers;
type Words = Op<usize, (usize, usize), usize, ()>;

impl Shapes<usize, (usize, usize), usize, ()> for Numbers {
    fn value(&self, width: usize) -> ValueShape {
        let rows = if width < 1000 {
            RowSet::All
        } else {
            RowSet::Outputs
        };
        ValueShape {
            width: width % 1000,
            rows,
        }
    }
    fn matrix(&self, (rows, cols): &(usize, usize)) -> Option<MatrixShape> {
        let (rows, cols) = (*rows, *cols);
        Some(MatrixShape { rows, cols })
    }
    fn vector(&self, len: &usize) -> Option<usize> {
        Some(*len)
    }
    fn table(&self, (): &()) -> Option<MatrixShape> {
        None
    }
    fn input(&self) -> Option<usize> {
        None
    }
    fn embedding_input_width(&self) -> usize {
        0
    }
    fn rope(&self, _: usize) -> Option<usize> {
        None
    }
    fn cache(&self, _: usize) -> Option<CacheShape> {
        None
    }
    fn state(&self, _: usize) -> Option<usize> {
        None
    }
}

fn width(op: &Words) -> Result<usize, ShapeError> {
    op.shape(&Numbers).map(|shape| shape.width)
}

fn top(x: usize, n: usize, groups: Option<TopGroups>) -> Words {
    Words::TopK { x, n, groups }
}

fn groups(count: usize, used: usize) -> Option<TopGroups> {
    Some(TopGroups { count, used })
}

fn experts(x: usize, w: (usize, usize), ids: usize, experts: usize) -> Words {
    Words::ExpertMatMul { x, w, ids, experts }
}

fn bias(x: usize, bias: usize, ids: usize) -> Words {
    Words::ExpertBias { x, bias, ids }
}

#[test]
fn shapes_that_fit_are_known() {
    for (op, expected) in [
        (Words::Softmax { x: 5 }, 5),
        (top(8, 8, None), 8),
        (top(8, 4, groups(4, 2)), 4),
        (Words::Gather { x: 9, ids: 3 }, 3),
        (Words::Normalize { x: 4, least: 1.0 }, 4),
        (Words::ScaleRows { x: 7, by: 1 }, 7),
        (Words::ScaleRows { x: 12, by: 3 }, 12),
        (experts(16, (40, 16), 3, 8), 15),
        (experts(48, (40, 16), 3, 8), 15),
        (bias(15, 40, 3), 15),
        (Words::ExpertSum { x: 15, weights: 3 }, 5),
    ] {
        assert_eq!(width(&op).expect("it fits"), expected, "{op:?}");
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    for op in [
        Words::Softmax { x: 0 },
        top(8, 0, None),
        top(8, 9, None),
        top(8, 5, groups(4, 2)),
        top(8, 1, groups(3, 1)),
        top(8, 1, groups(0, 1)),
        top(8, 1, groups(4, 0)),
        top(8, 1, groups(4, 5)),
        // groups of fewer than two values
        top(8, 1, groups(8, 2)),
        Words::Gather { x: 0, ids: 3 },
        Words::Gather { x: 9, ids: 0 },
        Words::Normalize { x: 0, least: 1.0 },
        Words::ScaleRows { x: 7, by: 2 },
        experts(17, (40, 16), 3, 8),
        experts(32, (40, 16), 3, 8),
        experts(16, (40, 16), 3, 7),
        experts(16, (40, 16), 3, 0),
        experts(16, (40, 16), 0, 8),
        experts(16, (40, 16), 9, 8),
        bias(16, 40, 3),
        bias(15, 41, 3),
        bias(15, 10, 3),
        bias(15, 40, 0),
        Words::ExpertSum { x: 16, weights: 3 },
        Words::ExpertSum { x: 15, weights: 0 },
    ] {
        assert!(
            matches!(width(&op), Err(ShapeError::Width { .. })),
            "{op:?}"
        );
    }
}

#[test]
fn rows_that_differ_are_refused() {
    for op in [
        Words::Gather { x: 9, ids: 1003 },
        Words::ScaleRows { x: 9, by: 1001 },
        experts(16, (40, 16), 1003, 8),
        bias(15, 40, 1003),
        Words::ExpertSum {
            x: 15,
            weights: 1003,
        },
    ] {
        assert!(matches!(width(&op), Err(ShapeError::RowsDiffer)), "{op:?}");
    }
}
