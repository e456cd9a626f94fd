//! Biases and embeddings by distance against the reference.

use candle_attention_kernels::{
    AttentionProblem, Batch, Broadcast, DistanceEmbeddings, DistanceTable, GridBias, Lengths, Mask, MaskStructure,
    Team, attend,
};

use super::attention::check;
use super::support::reference::{Sizes, problem, qkv};
use super::{Random, isas, on_threads};

/// Sizes around the ends of tiles, query blocks and key blocks.
const LENGTHS: [(usize, usize); 6] = [(1, 1), (1, 70), (5, 7), (7, 5), (9, 192), (65, 193)];

fn sizes((s_q, s_kv): (usize, usize), h_kv: usize) -> Sizes {
    Sizes { b: 2, s_q, s_kv, appended: 0, h: 4, h_kv, d: 12, d_v: 20 }
}

/// The first distance of a call without starts, and one more before it.
fn first(Sizes { s_kv, .. }: Sizes) -> i64 {
    -(s_kv as i64)
}

/// Embeddings per distance: of `span` on both sides of 0, then of groups of `step` distances, up to `count` in all.
fn indices(Sizes { s_q, s_kv, .. }: Sizes, span: i64, step: i64, count: i64) -> Vec<u32> {
    let bucket = |distance: i64| match distance.abs() {
        near if near <= span => distance,
        far => (span + (far - span + step - 1) / step) * distance.signum(),
    };
    let most = (s_q + s_kv) as i64;
    (-most..most).map(|distance| (count / 2 - bucket(distance)).clamp(0, count - 1) as u32).collect()
}

/// [`indices`] start at this distance.
fn first_index(Sizes { s_q, s_kv, .. }: Sizes) -> i64 {
    -((s_q + s_kv) as i64)
}

/// What is combined with distances: windows, lengths, appended keys, and queries that start elsewhere.
fn structures(Sizes { s_q, s_kv, .. }: Sizes) -> Vec<MaskStructure> {
    let base = MaskStructure::default;
    vec![
        base(),
        MaskStructure { right: Some(0), ..base() },
        MaskStructure { left: Some(3), right: Some(1), ..base() },
        MaskStructure { lengths: vec![Lengths::PerSequence(vec![s_kv / 2, s_kv])], ..base() },
        MaskStructure { lengths: vec![Lengths::Padding(vec![s_q.min(s_kv), 1])], ..base() },
        MaskStructure { starts: Some(vec![0, (s_kv - 1) as i64 / 2]), ..base() },
    ]
}

#[test]
fn biases_by_distance_match_the_reference() {
    let mut random = Random(11);
    for sizes in LENGTHS.map(|lengths| sizes(lengths, 2)) {
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        // As many distances as any of the starts needs.
        let (first, distances) = (-(2 * sizes.s_q.max(sizes.s_kv) as i64), 4 * sizes.s_q.max(sizes.s_kv));
        let mut values: Vec<f32> = random.values(sizes.h * distances);
        for hidden in [first.unsigned_abs() as usize, distances + 3 + first.unsigned_abs() as usize] {
            values[hidden] = f32::MIN;
        }
        let table = DistanceTable { values: &values, first, distances, factors: None };
        for structure in structures(sizes) {
            let what = format!("{sizes:?}, {structure:?}");
            let mut call = problem(sizes, [&q, &k, &v], Mask { tables: vec![table], ..structure.into() });
            check(&call, 3e-6, &what);
            call.bf16 = true;
            check(&call, 3e-2, &what);
            call.bf16 = false;
            call.mask.tables.push(table);
            check(&call, 3e-6, &format!("{what} twice"));
            let factors: Vec<f32> = random.values(sizes.b * sizes.h * sizes.s_q);
            let strides = [sizes.h * sizes.s_q, sizes.s_q, 1, 0];
            call.mask.tables[1].factors = Some(Broadcast { data: &factors, strides });
            check(&call, 3e-6, &format!("{what} times factors"));
            call.mask.tables.remove(0);
            check(&call, 3e-6, &format!("{what} times factors alone"));
        }
    }
}

#[test]
fn biases_of_rows_and_columns_match_the_reference() {
    let mut random = Random(17);
    for (s_q, [height, width]) in
        [(1, [1, 1]), (5, [2, 3]), (65, [5, 13]), (70, [14, 14]), (3, [1, 200]), (4, [200, 1])]
    {
        let sizes = sizes((s_q, height * width), 2);
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        let part = |random: &mut Random, side: usize| random.values::<f32>(sizes.b * sizes.h * s_q * side);
        let (rows, columns) = (part(&mut random, height), part(&mut random, width));
        let strides = |side: usize| [sizes.h * s_q * side, s_q * side, side, 1];
        let grid = GridBias {
            rows: Broadcast { data: &rows, strides: strides(height) },
            columns: Broadcast { data: &columns, strides: strides(width) },
            grid: [height, width],
        };
        for structure in structures(sizes) {
            let what = format!("{sizes:?}, {structure:?}");
            let mut call = problem(sizes, [&q, &k, &v], Mask { grids: vec![grid], ..structure.into() });
            check(&call, 3e-6, &what);
            call.bf16 = true;
            check(&call, 3e-2, &what);
        }
    }
}

/// What a table hides stays hidden, whatever another bias adds.
#[test]
fn what_a_table_hides_stays_hidden() {
    let mut random = Random(12);
    let sizes = sizes((5, 70), 4);
    let [q, k, v] = qkv::<f32>(&mut random, sizes);
    let mut values = vec![0.5; 4 * 80];
    values.iter_mut().step_by(2).for_each(|bias| *bias = f32::NEG_INFINITY);
    let infinite = vec![f32::INFINITY; 70];
    let table = DistanceTable { values: &values, first: first(sizes), distances: 80, factors: None };
    let bias = Broadcast { data: &infinite, strides: [0, 0, 0, 1] };
    let mut call = problem(sizes, [&q, &k, &v], Mask { tables: vec![table], ..Mask::default() });
    check(&call, 3e-6, "half of the keys");
    // Where a visible key has an infinite score, the output is NaN: only the queries that see none are compared.
    let hidden = [f32::NEG_INFINITY; 4 * 80];
    call.mask.tables = vec![DistanceTable { values: &hidden, ..table }];
    call.mask.bias.push(bias);
    for isa in isas() {
        let mut output = Vec::new();
        attend(isa, Team::ALONE, &call, &mut output).unwrap();
        assert!(output.iter().all(|x| *x == 0.0), "{}", isa.name());
    }
}

#[test]
fn embeddings_of_distances_match_the_reference() {
    let mut random = Random(13);
    for lengths in LENGTHS {
        for (h_kv, span, step, count) in [(4, 2, 1, 4), (2, 4, 3, 11), (4, 500, 1, 300)] {
            let sizes = sizes(lengths, h_kv);
            let [q, k, v] = qkv::<f32>(&mut random, sizes);
            let [c2p, p2c] = [0, 1].map(|_| {
                let values: Vec<f32> = random.values(count * sizes.h * sizes.d);
                values.iter().map(|x| x * 0.5).collect::<Vec<_>>()
            });
            let indices = indices(sizes, span, step, count as i64);
            let all = DistanceEmbeddings {
                c2p: Some(&c2p),
                p2c: Some(&p2c),
                count,
                indices: &indices,
                first: first_index(sizes),
            };
            for structure in structures(sizes) {
                let what = format!("{sizes:?}, {span} {step} {count}, {structure:?}");
                let mask = Mask { embeddings: Some(all), ..structure.clone().into() };
                let mut call = problem(sizes, [&q, &k, &v], mask);
                let small = sizes.s_q * sizes.s_kv < 100;
                if small || structure == MaskStructure::default() {
                    check(&call, 5e-6, &what);
                }
                if !small || structure != MaskStructure::default() {
                    continue;
                }
                call.bf16 = true;
                check(&call, 6e-2, &format!("{what} in bf16"));
                (call.bf16, call.softcap) = (false, Some(0.7));
                check(&call, 5e-6, &format!("{what} with a softcap"));
                call.mask.embeddings = Some(DistanceEmbeddings { c2p: None, ..all });
                check(&call, 5e-6, &format!("{what} without c2p"));
                call.mask.embeddings = Some(DistanceEmbeddings { p2c: None, ..all });
                check(&call, 5e-6, &format!("{what} without p2c"));
            }
        }
    }
}

#[test]
fn appended_keys_have_no_distance() {
    let mut random = Random(14);
    for s_kv in [0, 3, 191] {
        let sizes = Sizes { appended: 2, ..sizes((3, s_kv), 4) };
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        let (values, embedded) = (random.values(4 * 400), random.values(9 * 4 * 12));
        let indices = indices(sizes, 2, 2, 9);
        let tables = vec![DistanceTable { values: &values, first: -200, distances: 400, factors: None }];
        let embeddings = Some(DistanceEmbeddings {
            c2p: Some(&embedded),
            p2c: Some(&embedded),
            count: 9,
            indices: &indices,
            first: first_index(sizes),
        });
        let call = problem(sizes, [&q, &k, &v], Mask { tables, embeddings, ..Mask::default() });
        check(&call, 5e-6, &format!("{sizes:?}"));
    }
}

/// Alone, in a padded batch, ragged, and on one thread.
#[test]
fn a_sequence_gives_the_same_bits_in_every_batch() {
    let mut random = Random(15);
    for (length, padded, bf16) in [(1, 5, false), (65, 130, false), (65, 200, true)] {
        let sizes = Sizes { d_v: 12, ..sizes((padded, padded), 4) };
        let width = sizes.h * sizes.d;
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        let values: Vec<f32> = random.values(sizes.h * 2 * padded);
        let [c2p, p2c] = [0, 1].map(|_| random.values::<f32>(40 * width));
        let indices = indices(sizes, 9, 5, 40);
        let by_distance = Mask {
            tables: vec![DistanceTable {
                values: &values,
                first: -(padded as i64),
                distances: 2 * padded,
                factors: None,
            }],
            embeddings: Some(DistanceEmbeddings {
                c2p: Some(&c2p),
                p2c: Some(&p2c),
                count: 40,
                indices: &indices,
                first: first_index(sizes),
            }),
            ..Mask::default()
        };
        let mut batch = problem(sizes, [&q, &k, &v], by_distance.clone());
        batch.mask.structure.lengths = vec![Lengths::PerSequence(vec![padded, length])];
        // In a padded batch the last query stands at the last key; alone it has to stand where it did.
        let part = |x: &[f32]| x[padded * width..][..length * width].to_vec();
        let (q_1, k_1, v_1) = (part(&q), part(&k), part(&v));
        let alone_sizes = Sizes { b: 1, s_q: length, s_kv: length, ..sizes };
        let mut alone = problem(alone_sizes, [&q_1, &k_1, &v_1], by_distance.clone());
        let joined = |x: &[f32]| [&x[..padded * width], &part(x)].concat();
        let (q_2, k_2, v_2) = (joined(&q), joined(&k), joined(&v));
        let tokens = padded + length;
        let mut ragged = problem(Sizes { b: 1, s_q: tokens, s_kv: tokens, ..sizes }, [&q_2, &k_2, &v_2], by_distance);
        let offsets = [0, padded, tokens];
        ragged.batch = Batch::Ragged { offsets: &offsets };
        for isa in isas() {
            let run = |call: &mut AttentionProblem<f32>| {
                call.bf16 = bf16;
                let mut output = Vec::new();
                Team::with(usize::MAX, |team| attend(isa, team, call, &mut output)).unwrap();
                output
            };
            let together = run(&mut batch);
            assert_eq!(part(&together), run(&mut alone), "{} of {length} in {padded}", isa.name());
            assert_eq!(joined(&together), run(&mut ragged), "{} ragged", isa.name());
            for threads in [1, 7] {
                let again = on_threads(threads, || run(&mut batch));
                assert_eq!(together, again, "{} on {threads} threads", isa.name());
            }
        }
    }
}

#[test]
fn descriptions_that_do_not_cover_the_call_are_refused() {
    let sizes = sizes((5, 7), 4);
    let [q, k, v] = qkv::<f32>(&mut Random(16), sizes);
    let says = |mask: Mask, expected: &str| {
        let error = attend(isas()[0], Team::ALONE, &problem(sizes, [&q, &k, &v], mask), &mut Vec::new())
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    };
    let values = [0.0; 4 * 11];
    // The distances are -6 to 4.
    let table = DistanceTable { values: &values, first: -6, distances: 11, factors: None };
    let with_table = |table, starts| {
        let structure = MaskStructure { starts, ..MaskStructure::default() };
        Mask { tables: vec![table], ..structure.into() }
    };
    attend(isas()[0], Team::ALONE, &problem(sizes, [&q, &k, &v], with_table(table, None)), &mut Vec::new()).unwrap();
    says(with_table(DistanceTable { first: -5, ..table }, None), "the range of distances with a bias is -5 to 6");
    says(with_table(DistanceTable { distances: 10, ..table }, None), "the range of distances with a bias is -6 to 4");
    says(with_table(DistanceTable { values: &values[1..], ..table }, None), "the table of biases by distance");
    says(with_table(table, Some(vec![3, 2])), "expected -7 to 5");
    says(with_table(table, Some(vec![i64::MAX, i64::MIN])), "the range of distances");
    let factors = Broadcast { data: &values[..5], strides: [0, 5, 1, 0] };
    says(with_table(DistanceTable { factors: Some(factors), ..table }, None), "factors on a bias");
    let side = |size: usize| Broadcast { data: &values[..5 * size], strides: [0, 0, size, 1] };
    let with_grid = |rows, columns, grid| Mask { grids: vec![GridBias { rows, columns, grid }], ..Mask::default() };
    let good = problem(sizes, [&q, &k, &v], with_grid(side(1), side(7), [1, 7]));
    attend(isas()[0], Team::ALONE, &good, &mut Vec::new()).unwrap();
    says(with_grid(side(1), side(7), [2, 4]), "the grid of keys");
    says(with_grid(side(0), side(7), [1, 7]), "biases of rows");
    says(with_grid(side(1), side(6), [1, 7]), "biases of columns");
    let (embedded, indices) = ([0.0; 3 * 4 * 12], [2, 2, 2, 1, 1, 1, 1, 1, 0, 0, 0]);
    let all = DistanceEmbeddings { c2p: Some(&embedded), p2c: Some(&embedded), count: 3, indices: &indices, first: -6 };
    let with = |embeddings| Mask { embeddings: Some(embeddings), ..Mask::default() };
    attend(isas()[0], Team::ALONE, &problem(sizes, [&q, &k, &v], with(all)), &mut Vec::new()).unwrap();
    says(with(DistanceEmbeddings { first: -7, ..all }), "the range of distances with an embedding");
    says(with(DistanceEmbeddings { count: 2, ..all }), "numbers below 2 that never rise");
    let rising = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    says(with(DistanceEmbeddings { indices: &rising, ..all }), "numbers below 3 that never rise");
    says(with(DistanceEmbeddings { p2c: Some(&embedded[1..]), ..all }), "3 embeddings of 4 heads of 12");
    says(with(DistanceEmbeddings { count: usize::MAX, ..all }), "the number of embeddings of distances");
}
