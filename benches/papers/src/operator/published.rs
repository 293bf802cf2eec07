//! What the operator paper says of its nine functions: Tables 3, 4 and 5.

/// One function of the paper.
pub struct Published {
    pub name: &'static str,
    /// As the paper's clients ask.
    pub query: &'static str,
    /// True for those in Rust, which are components.
    pub is_component: bool,
    /// Standard deviation in seconds and coefficient of variation: Spin's, then OpenFaaS'.
    pub serial: [[f64; 2]; 2],
    /// The same of Table 4.
    pub concurrent: [[f64; 2]; 2],
    /// Sizes of the images in KB.
    pub images: [f64; 2],
}

/// Mean in ms, which Tables 3 and 4 do not print.
#[must_use]
pub fn mean([deviation, variation]: [f64; 2]) -> f64 {
    1e3 * deviation / variation
}

const fn function(
    (name, query, is_component): (&'static str, &'static str, bool),
    serial: [[f64; 2]; 2],
    concurrent: [[f64; 2]; 2],
    images: [f64; 2],
) -> Published {
    Published { name, query, is_component, serial, concurrent, images }
}

/// All nine, in the paper's order.
pub const FUNCTIONS: [Published; 9] = [
    function(
        ("aes", "length=1000&iterations=100", false),
        [[0.0055, 0.0907], [0.0068, 0.1312]],
        [[0.0253, 0.2828], [0.0205, 0.2711]],
        [132.0, 8780.0],
    ),
    function(
        ("float-operation", "n=10000000", false),
        [[0.0045, 0.1124], [0.0052, 0.1286]],
        [[0.0201, 0.3481], [0.02, 0.3356]],
        [122.0, 8790.0],
    ),
    function(
        ("fuzzysearch", "search=Hamlet", true),
        [[0.0137, 0.1029], [0.0606, 0.4317]],
        [[0.0231, 0.1336], [0.0227, 0.1506]],
        [712.0, 52620.0],
    ),
    function(
        ("linear-equations", "unknowns=128", false),
        [[0.0047, 0.0935], [0.0054, 0.1253]],
        [[0.0221, 0.2923], [0.0195, 0.3097]],
        [161.0, 8920.0],
    ),
    function(
        ("matmul", "dimensions=50", false),
        [[0.0051, 0.0885], [0.0057, 0.126]],
        [[0.0235, 0.2777], [0.0195, 0.3004]],
        [134.0, 8850.0],
    ),
    function(
        ("n-body", "", true),
        [[0.0044, 0.1093], [0.0057, 0.1451]],
        [[0.02, 0.3347], [0.0199, 0.3277]],
        [562.0, 50970.0],
    ),
    function(
        ("prime-numbers", "n=100", true),
        [[0.0044, 0.1099], [0.0058, 0.1463]],
        [[0.0193, 0.3279], [0.0187, 0.3102]],
        [675.0, 50950.0],
    ),
    function(
        ("user-manager", "entries=1", true),
        [[0.0121, 0.1522], [0.0131, 0.1608]],
        [[0.0233, 0.212], [0.023, 0.2334]],
        [733.0, 52500.0],
    ),
    function(
        ("whatlang", "text=The+quick+brown+fox+jumps+over+the+lazy+dog", true),
        [[0.0044, 0.1083], [0.0059, 0.1469]],
        [[0.0203, 0.3353], [0.0193, 0.3159]],
        [753.0, 51040.0],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_the_deviation_by_the_variation() {
        let body = FUNCTIONS.iter().find(|function| function.name == "n-body").unwrap();
        // The paper's data has 40.3 and 39.6 ms.
        assert!((mean(body.serial[0]) - 40.3).abs() < 0.1);
        assert!((mean(body.serial[1]) - 39.6).abs() < 0.4);
    }
}
