//! Runs the scenarios of tests/conformance:
//! conformance [--ca FILE] [--certificate FILE --key FILE] [--token TOKEN] ADDRESS SCENARIOS

use std::collections::HashSet;
use std::time::{Duration, Instant};

use magnitude::v1::tokenize_request::Input;
use magnitude::v1::{
    ChatMessage, ChoiceEnd, FinishReason, GetLoadRequest, HealthRequest, InferRequest, ListModelsRequest, ListRequest,
    TokenizeRequest, Usage,
};
use magnitude::{Certificate, Client, ClientTlsConfig, Code, Error, Identity, Session};
use prost_reflect::prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::Value;
use tokio_stream::StreamExt;

const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto");

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Fails the scenario with a message.
macro_rules! ensure {
    ($holds:expr, $($message:tt)*) => {
        if !$holds {
            return Err(format!($($message)*).into());
        }
    };
}

/// `patient` tries again where the server says so, `hasty` does not.
struct Conformance {
    patient: Client,
    hasty: Client,
    contract: DescriptorPool,
}

#[tokio::main]
async fn main() -> Outcome {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut option = |name| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.drain(at..at + 2).nth(1)
    };
    let (authorities, token) = (option("--ca"), option("--token"));
    let pair = option("--certificate").zip(option("--key"));
    let connect = |retries| {
        let mut builder = Client::builder(&arguments[0]).retries(retries);
        if let Some(file) = &authorities {
            let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(std::fs::read(file)?));
            if let Some((certificate, key)) = &pair {
                tls = tls.identity(Identity::from_pem(std::fs::read(certificate)?, std::fs::read(key)?));
            }
            builder = builder.tls(tls);
        }
        if let Some(token) = &token {
            builder = builder.token(token);
        }
        Outcome::Ok(builder.connect()?)
    };
    let contract =
        DescriptorPool::from_file_descriptor_set(protox::compile(["magnitude/v1/inference.proto"], [PROTO])?)?;
    let conformance = Conformance { patient: connect(true)?, hasty: connect(false)?, contract };
    let scenarios: Vec<Value> = serde_json::from_slice(&std::fs::read(&arguments[1])?)?;
    let mut failed = false;
    for scenario in &scenarios {
        let begin = Instant::now();
        let name = text(&scenario["name"]);
        match conformance.run(scenario).await {
            Ok(()) => println!("ok {name} ({} ms)", begin.elapsed().as_millis()),
            Err(error) => {
                failed = true;
                println!("FAILED {name}: {error}");
            }
        }
    }
    std::process::exit(failed.into());
}

impl Conformance {
    async fn run(&self, s: &Value) -> Outcome {
        match text(&s["kind"]) {
            "unary" => self.unary(s).await,
            "stream" => self.stream(s).await,
            "conversation" => self.conversation(s).await,
            "cancel" => self.cancel(s).await,
            "deadline" => self.deadline(s).await,
            "refused" => self.refused(s).await,
            "rejected" => return self.rejected(s).await,
            "balanced" => self.balanced(s).await,
            "repeated" => self.repeated(s).await,
            "lost" => self.lost(s).await,
            "exhausted" => self.exhausted(s).await,
            "retried" => self.retried(s).await,
            "session" => self.session(s).await,
            "snapshot" => self.snapshot(s).await,
            kind => Err(format!("this client has no scenarios of kind {kind}").into()),
        }?;
        self.idle().await
    }

    async fn unary(&self, s: &Value) -> Outcome {
        let request = self.request(&s["request"])?;
        let answer = self.patient.infer(request.clone()).await?;
        ensure!(answer.metadata == request.metadata, "metadata: {:?}", answer.metadata);
        let choice = &answer.choices[0];
        check_answer(&s["expect"], &choice.text, choice.end.as_ref(), answer.usage.as_ref())
    }

    async fn stream(&self, s: &Value) -> Outcome {
        let request = self.request(&s["request"])?;
        let whole = self.patient.infer(request.clone()).await?;
        let mut stream = self.patient.stream(request).await?;
        let mut deltas = Vec::new();
        while let Some(text) = stream.next_text().await? {
            ensure!(stream.started.is_some() && stream.finished.is_none(), "a delta out of its place");
            deltas.push(text);
        }
        let finished = stream.finished.ok_or("the stream ended without `finished`")?;
        ensure!(deltas.concat() == whole.choices[0].text, "the deltas are {deltas:?}");
        ensure!(deltas.len() as u64 >= number(&s["expect"]["deltasMin"]), "{} deltas", deltas.len());
        check_answer(&s["expect"], &deltas.concat(), finished.ends.first(), finished.usage.as_ref())
    }

    async fn conversation(&self, s: &Value) -> Outcome {
        let mut chat = self.patient.conversation([ChatMessage::system("Be brief.")], self.request(&s["request"])?);
        for said in s["says"].as_array().into_iter().flatten() {
            let answer = chat.say(text(said)).await?;
            ensure!(answer == text(&s["expect"]["text"]), "the answer is {answer:?}");
        }
        ensure!(chat.messages.len() as u64 == number(&s["expect"]["messages"]), "{} messages", chat.messages.len());
        Ok(())
    }

    /// To drop a stream is the one way to cancel it.
    async fn cancel(&self, s: &Value) -> Outcome {
        let mut stream = self.hasty.stream(self.request(&s["request"])?).await?;
        for _ in 0..number(&s["afterDeltas"]) {
            ensure!(stream.next_text().await?.is_some(), "the stream ended by itself");
        }
        drop(stream);
        self.idle().await?;
        let infer = self.hasty.infer(self.request(&s["request"])?);
        ensure!(tokio::time::timeout(Duration::from_millis(50), infer).await.is_err(), "the answer came too soon");
        Ok(())
    }

    async fn deadline(&self, s: &Value) -> Outcome {
        let bounded = self.hasty.with_timeout(Duration::from_millis(number(&s["timeoutMs"])));
        fails(&s["expect"], bounded.infer(self.request(&s["request"])?).await, "")?;
        fails(&s["expect"], drained(&bounded, self.request(&s["request"])?).await, "")?;
        Ok(())
    }

    async fn refused(&self, s: &Value) -> Outcome {
        fails(&s["expect"], self.patient.infer(self.request(&s["request"])?).await, "")?;
        fails(&s["expect"], drained(&self.patient, self.request(&s["request"])?).await, "request.")?;
        Ok(())
    }

    async fn rejected(&self, s: &Value) -> Outcome {
        fails(&s["expect"], self.hasty.infer(self.request(&s["request"])?).await, "")?;
        fails(&s["expect"], drained(&self.hasty, self.request(&s["request"])?).await, "")?;
        Ok(())
    }

    async fn balanced(&self, s: &Value) -> Outcome {
        let wanted: HashSet<_> = s["expect"]["models"].as_array().into_iter().flatten().map(text).collect();
        let mut answered = HashSet::new();
        let end = Instant::now() + Duration::from_secs(10);
        while answered.len() < wanted.len() {
            let model = self.patient.infer(self.request(&s["request"])?).await?.model;
            ensure!(wanted.contains(model.as_str()), "{model} answered");
            answered.insert(model);
            ensure!(Instant::now() < end, "all answers are from {answered:?}");
        }
        Ok(())
    }

    async fn repeated(&self, s: &Value) -> Outcome {
        self.reads(s).await?;
        let (session, brought) = (self.new_session(), self.new_session());
        let (request, expected) = (self.request(&s["request"])?.in_session(&session), text(&s["expect"]["text"]));
        let answer = self.patient.infer(request.clone()).await?;
        ensure!(answer.choices[0].text == expected, "the text is {:?}", answer.choices[0].text);
        let streamed = joined(&self.patient, request).await?;
        ensure!(streamed == expected, "the streamed text is {streamed:?}");
        ensure!(session.save(Some(b"state".to_vec())).await?.version == 1, "saved as another version");
        ensure!(self.versions(&session).await? == 1, "not one version");
        session.restore().await?;
        brought.import(session.export().await?).await?;
        session.delete().await?;
        brought.delete().await?;
        Ok(())
    }

    async fn lost(&self, s: &Value) -> Outcome {
        self.reads(s).await?;
        let (session, brought) = (self.new_session(), self.new_session());
        let request = self.request(&s["request"])?.in_session(&session);
        fails(&s["expect"], self.patient.infer(request.clone()).await, "")?;
        fails(&s["expect"], joined(&self.patient, request).await, "")?;
        fails(&s["expect"], session.save(None).await, "")?;
        ensure!(self.versions(&session).await? == 1, "not one version");
        session.restore().await?;
        fails(&s["expect"], brought.import(session.export().await?).await, "")?;
        ensure!(self.versions(&brought).await? == 1, "not one version brought over");
        fails(&s["expect"], session.delete().await, "")?;
        ensure!(self.versions(&session).await? == 0, "a version is left");
        Ok(())
    }

    /// Makes each call that changes nothing.
    async fn reads(&self, s: &Value) -> Outcome {
        let client = &self.patient;
        client.read(HealthRequest::default(), async |r| client.health().health(r).await).await?;
        client.read(ListModelsRequest::default(), async |r| client.models().list_models(r).await).await?;
        let hello = TokenizeRequest { input: Some(Input::Text("hello".into())), ..Default::default() };
        client.read(hello, async |r| client.inference().tokenize(r).await).await?;
        let (request, expected) = (self.request(&s["request"])?, text(&s["expect"]["text"]));
        let answer = client.infer(request.clone()).await?;
        ensure!(answer.choices[0].text == expected, "the text is {:?}", answer.choices[0].text);
        let streamed = joined(client, request).await?;
        ensure!(streamed == expected, "the streamed text is {streamed:?}");
        Ok(())
    }

    async fn versions(&self, session: &Session) -> Outcome<usize> {
        let request = ListRequest { session_id: session.id.clone(), all_versions: true, ..Default::default() };
        let found = self.patient.read(request, async |r| self.patient.snapshots().list(r).await).await?;
        Ok(found.snapshots.len())
    }

    async fn exhausted(&self, s: &Value) -> Outcome {
        let _held = self.hold(s).await?;
        let error = fails(&s["expect"], self.hasty.infer(self.request(&s["request"])?).await, "")?;
        ensure!(error.retry_after.is_some_and(|delay| !delay.is_zero()), "no delay to wait for");
        Ok(())
    }

    async fn retried(&self, s: &Value) -> Outcome {
        let held = self.hold(s).await?;
        let refused = self.hasty.infer(self.request(&s["request"])?).await;
        ensure!(refused.is_err_and(|error| error.code == Code::ResourceExhausted), "the queue is not full");
        let release_after = Duration::from_millis(number(&s["releaseAfterMs"]));
        let release = async {
            tokio::time::sleep(release_after).await;
            drop(held);
            Ok(())
        };
        tokio::try_join!(release, self.unary(s)).map(|_| ())
    }

    async fn session(&self, s: &Value) -> Outcome {
        let session = self.new_session();
        self.say(&session, s, 0).await?;
        let saved = session.save(None).await?;
        ensure!(saved.version == 1, "saved: {saved:?}");
        let first = self.say(&session, s, 1).await?;
        self.goes_on(&session, s, &first).await
    }

    async fn snapshot(&self, s: &Value) -> Outcome {
        let (session, brought) = (self.new_session(), self.new_session());
        let agent_state: Vec<u8> = (0..number(&s["agentStateBytes"])).map(|i| (i % 251) as u8).collect();
        self.say(&session, s, 0).await?;
        let saved = session.save(Some(agent_state.clone())).await?;
        ensure!(saved.agent_state_bytes == agent_state.len() as u64, "saved: {saved:?}");
        let state = session.export().await?;
        ensure!(state.agent_state == agent_state && !state.key_value.is_empty(), "not what was saved");
        brought.import(state).await?;
        let first = self.say(&session, s, 1).await?;
        self.goes_on(&brought, s, &first).await?;
        session.delete().await?;
        Ok(())
    }

    /// Restores a session: it says again what it said first. Then it is forgotten.
    async fn goes_on(&self, session: &Session, s: &Value, first: &str) -> Outcome {
        let fidelity = session.restore().await?.fidelity().as_str_name();
        ensure!(fidelity == s["expect"]["fidelity"], "{fidelity}");
        let again = self.say(session, s, 1).await?;
        ensure!(again == first, "it goes on with {again:?}, not with {first:?}");
        session.delete().await?;
        Ok(())
    }

    async fn say(&self, session: &Session, s: &Value, index: usize) -> Outcome<String> {
        let input = InferRequest::text(text(&s["says"][index])).input;
        let request = InferRequest { input, ..self.request(&s["request"])? };
        Ok(self.patient.infer(request.in_session(session)).await?.choices.remove(0).text)
    }

    fn new_session(&self) -> Session {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        self.patient.session(format!("conformance/rust/{}", now.as_nanos()))
    }

    /// Fills the server with streams that go on until they are dropped.
    async fn hold(&self, s: &Value) -> Outcome<Vec<magnitude::Stream>> {
        let mut held = Vec::new();
        for _ in 0..number(&s["hold"]) {
            let mut stream = self.patient.stream(self.request(&s["held"])?).await?;
            stream.try_next().await?;
            held.push(stream);
        }
        Ok(held)
    }

    /// Waits until the server has nothing to do: what was cancelled has ended there too.
    async fn idle(&self) -> Outcome {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let answer = self.hasty.inference().get_load(GetLoadRequest::default()).await.map_err(Error::from)?;
            let load = answer.into_inner().load.unwrap_or_default();
            if load.running_requests + load.waiting_requests == 0 {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the server is still busy");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A request from JSON, as protobuf writes it.
    fn request(&self, json: &Value) -> Outcome<InferRequest> {
        let kind = self.contract.get_message_by_name("magnitude.v1.InferRequest").ok_or("no InferRequest")?;
        let message = DynamicMessage::deserialize(kind, json)?;
        Ok(InferRequest::decode(message.encode_to_vec().as_slice())?)
    }
}

async fn drained(client: &Client, request: InferRequest) -> Result<(), Error> {
    let mut stream = client.stream(request).await?;
    while stream.try_next().await?.is_some() {}
    Ok(())
}

async fn joined(client: &Client, request: InferRequest) -> Result<String, Error> {
    let mut stream = client.stream(request).await?;
    let mut whole = String::new();
    while let Some(text) = stream.next_text().await? {
        whole.push_str(&text);
    }
    Ok(whole)
}

fn check_answer(expect: &Value, text: &str, end: Option<&ChoiceEnd>, usage: Option<&Usage>) -> Outcome {
    let (end, usage) = (end.ok_or("no end")?, usage.ok_or("no usage")?);
    ensure!(expect["text"].as_str().is_none_or(|wanted| wanted == text), "the text is {text:?}");
    let reason = FinishReason::try_from(end.finish_reason)?.as_str_name();
    ensure!(reason == expect["finishReason"], "it ended for {reason}");
    ensure!(u64::from(usage.completion_tokens) == number(&expect["completionTokens"]), "{usage:?}");
    Ok(())
}

fn fails<T>(expect: &Value, outcome: Result<T, Error>, prefix: &str) -> Outcome<Error> {
    let error = outcome.err().ok_or("the call did not fail")?;
    let code = format!("{:?}", error.code).to_uppercase();
    ensure!(code == text(&expect["code"]).replace('_', ""), "{error}");
    ensure!(expect["reason"].as_str().is_none_or(|reason| reason == error.reason), "{}: {error}", error.reason);
    if let Some(field) = expect["field"].as_str() {
        ensure!(error.field_violations.contains_key(&format!("{prefix}{field}")), "{:?}", error.field_violations);
    }
    Ok(error)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}
