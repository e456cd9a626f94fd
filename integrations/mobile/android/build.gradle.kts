// The Android module: the Kotlin bindings and the libraries, both made by `android/build-libraries`.
import org.jetbrains.kotlin.gradle.dsl.JvmTarget

// Their versions are in settings.gradle.kts, or in the build of the app that includes the module.
plugins {
    id("com.android.library")
    id("org.jetbrains.kotlin.android")
}

android {
    namespace = "candle.attention"
    compileSdk = 36

    defaultConfig {
        // `android/build-libraries` states it too.
        minSdk = 24
        consumerProguardFiles("consumer-rules.pro")
        testInstrumentationRunner = "androidx.test.runner.AndroidJUnitRunner"
    }

    // Any JDK that Gradle runs on, from 17 on, compiles for it.
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }
}

kotlin {
    compilerOptions {
        jvmTarget = JvmTarget.JVM_17
    }
}

dependencies {
    // The bindings call the library through it. Versions before 5.17 do not load on Android with pages of 16 KB. When several
    // threads make the first calls, 5.16 and 5.17 can end in a deadlock, and those before 5.18.1 in a crash (JNA's issues 1681
    // and 1686).
    implementation("net.java.dev.jna:jna:5.18.1@aar")
    androidTestImplementation("androidx.test:runner:1.6.2")
    androidTestImplementation("androidx.test.ext:junit:1.2.1")
}
