//! The function `rerank`.

use std::ops::Range;
use std::sync::Arc;

use candle_attention_text::{CrossEncoder, EncodeOptions};
use datafusion::arrow::array::{ArrayRef, Float32Array};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use crate::arguments::{literal, literals, scalars, text_literal, text_types};
use crate::arrays::texts;
use crate::encoding::{first_failing, one_at_a_time};
use crate::error::Error;
use crate::model::Model;
use crate::models::Models;

/// `rerank(query, text [, model [, fingerprint]])`: the score of each pair; null where a text is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Rerank {
    models: Arc<Models>,
    signature: Signature,
}

impl Rerank {
    pub fn new(models: Arc<Models>) -> Self {
        Self { models, signature: Signature::user_defined(Volatility::Immutable) }
    }

    /// The model that the literals of a call name.
    fn model(&self, arguments: &[Option<&ScalarValue>]) -> Result<&Model<CrossEncoder>> {
        let text = |what, i| literal(self.name(), what, arguments, i);
        let model = self.models.reranker(text("model", 2)?)?;
        self.models.check_fingerprint(model.name(), model.fingerprint().to_string(), text("fingerprint", 3)?)?;
        Ok(model)
    }

    fn scores(&self, model: &Model<CrossEncoder>, queries: &ArrayRef, documents: &ArrayRef) -> Result<Float32Array> {
        let (queries, documents) = (texts(queries)?, texts(documents)?);
        let rows: Vec<Option<(&str, &str)>> = queries.iter().zip(documents).map(|(a, b)| Some(((*a)?, b?))).collect();
        let given: Vec<(&str, &str)> = rows.iter().flatten().copied().collect();
        let mut scores = match one_at_a_time(given.len(), || finite_scores(model, &given)) {
            Ok(scores) => scores.into_iter(),
            Err(error) => return Err(blame(model, &rows, error).into()),
        };
        Ok(rows.iter().map(|row| row.and_then(|_| scores.next())).collect())
    }
}

/// The scores of pairs, all finite.
fn finite_scores(model: &Model<CrossEncoder>, pairs: &[(&str, &str)]) -> candle_attention::Result<Vec<f32>> {
    let scores = model.model().scores(pairs, &EncodeOptions::default())?;
    match scores.iter().position(|score| !score.is_finite()) {
        Some(i) => Err(candle_attention::Error::NotFinite { what: format!("the score of pair {i}") }),
        None => Ok(scores),
    }
}

/// The error of a batch with the row that causes it, if there is one.
fn blame(model: &Model<CrossEncoder>, rows: &[Option<(&str, &str)>], error: candle_attention::Error) -> Error {
    let given: Vec<(usize, (&str, &str))> =
        rows.iter().enumerate().filter_map(|(row, pair)| Some((row, (*pair)?))).collect();
    let mut run = |range: Range<usize>| {
        let pairs: Vec<(&str, &str)> = given[range].iter().map(|(_, pair)| *pair).collect();
        one_at_a_time(0, || finite_scores(model, &pairs)).map(drop)
    };
    match first_failing(given.len(), &mut run) {
        Some((i, error)) => Error::in_row(given[i].0, rows.len(), given[i].1.1, &error),
        None => Error::load(model.name(), error),
    }
}

impl ScalarUDFImpl for Rerank {
    fn name(&self) -> &str {
        "rerank"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, found: &[DataType]) -> Result<Vec<DataType>> {
        text_types(self.name(), &["query", "text", "model", "fingerprint"], 2, found)
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("whether `rerank` can be called depends on its literals")
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.model(args.scalar_arguments)?;
        Ok(Arc::new(Field::new(self.name(), DataType::Float32, true)))
    }

    /// Adds the model that the call leaves out, and its fingerprint, so that all nodes compute the same.
    fn simplify(&self, args: Vec<Expr>, _: &SimplifyContext) -> Result<ExprSimplifyResult> {
        if args.len() > 3 {
            return Ok(ExprSimplifyResult::Original(args));
        }
        let model = self.model(&literals(&args))?;
        let (name, fingerprint) = (text_literal(model.name()), text_literal(model.fingerprint()));
        let full = vec![args[0].clone(), args[1].clone(), name, fingerprint];
        let function = Arc::new(ScalarUDF::from(self.clone()));
        Ok(ExprSimplifyResult::Simplified(Expr::ScalarFunction(ScalarFunction::new_udf(function, full))))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let model = self.model(&scalars(&args.args))?;
        let both = ColumnarValue::values_to_arrays(&args.args[..2])?;
        let scores = self.scores(model, &both[0], &both[1])?;
        let is_scalar = args.args[..2].iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        Ok(if is_scalar {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&scores, 0)?)
        } else {
            ColumnarValue::Array(Arc::new(scores))
        })
    }
}
