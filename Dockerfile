# The gateway and the demo server. Two stages: the second has no compiler and no shell scripts of ours.

FROM rust:1.95-slim-bookworm AS build
# ring and the allocator have parts in C.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY benches benches
RUN cargo build --release --locked --bins

FROM debian:bookworm-slim
RUN useradd --system --no-create-home --shell /usr/sbin/nologin taskgate
COPY --from=build /src/target/release/taskgate /src/target/release/demo_server /usr/local/bin/
USER taskgate
EXPOSE 8080 9090
# taskgate stops on SIGTERM and then drains; give it `shutdown.drain` and some seconds more.
ENTRYPOINT ["taskgate"]
CMD ["serve", "--config", "/etc/taskgate/taskgate.yaml"]
